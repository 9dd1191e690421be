"""Flags that hold answers to a form, and the constraint that they make."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from trivium.base.errors import ConfigError
from trivium.cli.schema import read_text

if TYPE_CHECKING:
    from trivium.config.structured import StructuredOutputs


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintFlags:
    """What was given; at most one of them."""

    schema: Annotated[
        Path | None, Parameter(help="File with a JSON Schema that answers satisfy.", show_default=False)
    ] = None
    regex: Annotated[str | None, Parameter(help="Regular expression that whole answers match.", show_default=False)] = (
        None
    )
    choice: Annotated[
        tuple[str, ...], Parameter(help="Text that answers may be; repeat it.", negative="", show_default=False)
    ] = ()
    grammar: Annotated[
        Path | None,
        Parameter(help="File with a grammar (Lark or GBNF) of whose sentences answers are.", show_default=False),
    ] = None

    def constraint(self) -> StructuredOutputs | None:
        """Return the constraint that the flags ask for, if they do.

        Raises:
            ConfigError: Two of them ask for one, or a file cannot be read.
            InvalidParameterError: It is outside the limits.
        """
        from trivium.config.structured import StructuredOutputs  # noqa: PLC0415  (start-up time)

        given = [f"--{each.name}" for each in fields(self) if getattr(self, each.name) not in (None, ())]
        if not given:
            return None
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} both say what answers may be; give one of them")
        wanted = StructuredOutputs(
            json=None if self.schema is None else read_text(self.schema),
            regex=self.regex,
            choice=self.choice or None,
            grammar=None if self.grammar is None else read_text(self.grammar),
        )
        wanted.validate()
        return wanted


NO_CONSTRAINT = ConstraintFlags()
