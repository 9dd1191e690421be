"""Which program a request belongs to, and what is left of that program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trivium.base.errors import InvalidParameterError

MAX_ID_CHARS = 256
_INT31 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramShare:
    """A request's share in a program: a run of several requests that go on from each other's text.

    Until the program ends, the prefix cache drops its paths after all others (`--program-idle-s`), and
    `--order program` looks at what is left of it. No token of an answer depends on it.
    """

    program_id: str
    """The same in all requests of a program; programs of other tenants may have the same."""
    remaining_tokens: int | None = None
    """Tokens, of prompts and answers, that the program will still have computed after this request, as far as its
    author knows; `None` where nobody does. Only `--order program` looks at it."""
    ends: bool = False
    """Whether this is its last request: with it the program has ended."""

    def validate(self, name: str = "program") -> None:
        """Check the limits.

        Raises:
            InvalidParameterError: A value is outside its limits.
        """
        name_given: Any = self.program_id
        if not isinstance(name_given, str) or not 0 < len(name_given) <= MAX_ID_CHARS:
            raise _bad(name, "id", name_given, f"a text of 1 to {MAX_ID_CHARS} characters")
        remaining: Any = self.remaining_tokens
        is_whole = isinstance(remaining, int) and not isinstance(remaining, bool)
        if remaining is not None and not (is_whole and 0 <= remaining <= _INT31):
            raise _bad(name, "remaining_tokens", remaining, f"a whole number from 0 to {_INT31}")
        ends: Any = self.ends
        if not isinstance(ends, bool):
            raise _bad(name, "ends", ends, "true or false")


def _bad(name: str, part: str, value: object, limit: str) -> InvalidParameterError:
    return InvalidParameterError(f"{name}.{part} is {repr(value)[:80]}; it must be {limit}", param=name)
