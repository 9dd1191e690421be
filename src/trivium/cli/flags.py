"""Flags made from records of options: name, type, default and help are the record's own.

A flag's text is not converted here: `config.resolve` does that for flags, variables and files alike, so that all of
them refuse a bad value in the same words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

from cyclopts import Group, Parameter

from trivium.base import log
from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.cli import pages
from trivium.cli.terminal import note
from trivium.config.options import ModelOptions
from trivium.config.record import VERBATIM, Option, options_of
from trivium.config.resolve import Settings, resolve
from trivium.config.sampling import SamplingParams

ModelName = Annotated[
    str | None,
    Parameter(
        help=next(option.meaning for option in options_of(ModelOptions) if option.name == "model"),
        show_default=lambda _: ModelOptions().model,
    ),
]
F = TypeVar("F", bound=Callable[..., Any])

GivenFlags = Mapping[str, Any]
"""Option name to the texts of its flag, or a switch's state; options whose flag was not given are absent."""
ConfigFile = Annotated[
    Path | None, Parameter(help="YAML or TOML file of options; TRIVIUM_CONFIG when not given.", show_default=False)
]


def flags_of(
    *records: type,
    without: Collection[str] = (),
    only: Collection[str] | None = None,
    hidden: Collection[str] = (),
    aside: Collection[type] = (),
) -> Callable[[F], F]:
    """Give a command, which takes `**flags`, a flag for every option of the records.

    Args:
        records: In the order of the help text; where two have an option of one name, the first one's is taken.
        without: Options that get no flag, such as those that the command takes as an argument.
        only: The options that get a flag; all when `None`.
        hidden: Options whose flag is left out of the help, as the command refuses it.
        aside: Records whose options are all advanced for this command.
    """

    def give(command: F) -> F:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {parameter.name for parameter in own} | set(without)
        made: list[inspect.Parameter] = []
        places: dict[type, int] = {}  # a heading per record, in their order, each before that of its advanced options
        for option in (option for record in records for option in options_of(record)):
            if option.name not in taken and (only is None or option.name in only):
                taken.add(option.name)
                place = 100 + 2 * places.setdefault(option.record, len(places))
                heading = _heading(option.record)
                if option.is_advanced or option.record in aside:
                    group = Group(pages.advanced(heading), sort_key=place + 1)
                else:
                    group = Group(heading, sort_key=place)
                made.append(_parameter(option, group, is_shown=option.name not in hidden))
        parameters = [*own, *made]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        return command

    return give


def settle(
    records: Sequence[type], flags: GivenFlags, *, config: Path | None = None, model: str | None = None
) -> Settings:
    """Resolve the options of a command and set up its log.

    Raises:
        ConfigError: A value is not one that its option can have.
    """
    settings = resolve(records, flags=given_flags(flags, model), file=config)
    for variable in settings.unknown_variables:
        note(f"trivium: warning: unknown variable {variable}")
    if "log_level" in settings.by_name:
        log.set_up(level=settings["log_level"], form=settings["log_format"], secrets=settings.secrets())
    return settings


def given_flags(flags: GivenFlags, model: str | None) -> GivenFlags:
    """Return a command's flags, the model's name among them when it was given."""
    return flags if model is None else {**flags, "model": model}


def given_params(flags: GivenFlags) -> dict[str, Any]:
    """Read the flags of sampling parameters, and only those that were given.

    Raises:
        ConfigError: A text is not a value of its parameter, or the value is outside its limits.
    """
    names = {option.name for option in options_of(SamplingParams)}
    own = {name: value for name, value in flags.items() if name in names}
    settings = resolve((SamplingParams,), flags=own, environ={})
    params = {name: settings[name] for name in own}
    try:
        SamplingParams(**params).validate()
    except InvalidParameterError as error:
        raise ConfigError(str(error)) from error
    return params


def without(record: type, flags: GivenFlags) -> dict[str, Any]:
    """Return the flags that do not belong to a record."""
    names = {option.name for option in options_of(record)}
    return {name: value for name, value in flags.items() if name not in names}


def _parameter(option: Option, group: Group, *, is_shown: bool) -> inspect.Parameter:
    is_switch = option.kind is bool
    is_map = get_origin(option.kind) is Mapping
    details = Parameter(
        name=(option.flag, f"-{option.name}") if len(option.name) == 1 else (option.flag, *option.other_flags),
        help=_meaning(option),
        group=group,
        show=is_shown,
        converter=None if is_switch else _texts,
        negative=None if is_switch else "",
        show_default=_default_text(option),
        metavar="ID=BIAS" if is_map else None,
        allow_leading_hyphen=option.name in VERBATIM or option.element in {int, float},
    )
    kind = tuple[str, ...] if is_map else option.kind
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, details, _ANY_VALUE],
    )


class _AnyValue:
    """Keeps pydantic, which cyclopts consults when some library has imported it, from judging texts by the type."""

    def __get_pydantic_core_schema__(self, *_: object) -> dict[str, str]:
        return {"type": "any"}


_ANY_VALUE = _AnyValue()


def _meaning(option: Option) -> str:
    if not option.is_many:
        return option.meaning
    how = "Repeat the flag for several, or separate by commas." if option.is_split else "Repeat the flag for several."
    return f"{option.meaning} {how}"


def _heading(record: type) -> str:
    if record is SamplingParams:
        return "Sampling options (where the model recommends another default, that one)"
    return f"{record.__name__.removesuffix('Options')} options"


def _default_text(option: Option) -> Any:
    if option.default in (None, (), {}):
        return False
    text = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    return lambda _: text


def _texts(_: Any, tokens: Sequence[Any]) -> tuple[str, ...]:
    return tuple(token.value for token in tokens)
