"""Which value an option has, and why: defaults, then a file, then the environment, then what was given.

::

    default  <  --config FILE  <  TRIVIUM_*  <  flag

Each layer overrides the one before it, option by option. Every value is checked, and remembers where it came from.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from trivium.base import env
from trivium.base.errors import ConfigError
from trivium.base.log import BLANK
from trivium.config.file import read_file
from trivium.config.limits import check_together, check_value
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import Option, options_of, sections_of
from trivium.config.value import accept, parse

R = TypeVar("R")

RECORDS: tuple[type, ...] = (EngineOptions, ServerOptions)
"""The records whose options a file or a variable may set, whatever the command."""
_PREFIX = "TRIVIUM_"
CONFIG_VARIABLE = _PREFIX + "CONFIG"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option, and where it came from."""

    option: Option
    value: Any
    origin: str
    """`default`, a file's path, a variable's name, a flag, or `argument`."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The texts of a secret, which may be one or several."""
        return (self.value,) if isinstance(self.value, str) else tuple(map(str, self.value or ()))

    @property
    def shown(self) -> str:
        """The value as text, secrets masked."""
        if self.option.is_secret:
            return ", ".join(map(_mask, self.keys)) or "none"
        if isinstance(self.value, tuple):
            return ", ".join(map(str, self.value)) or "none"
        return {None: "none", True: "true", False: "false"}.get(self.value) or str(self.value)

    @property
    def plain(self) -> Any:
        """The value as JSON has it: number, text, true or false, null, list or object; secrets masked."""
        if self.option.is_secret:
            return [_mask(key) for key in self.keys]
        if isinstance(self.value, tuple):
            return [str(part) if isinstance(part, Path) else part for part in self.value]
        if isinstance(self.value, Mapping):
            return {str(key): part for key, part in self.value.items()}
        return str(self.value) if isinstance(self.value, Path) else self.value


@dataclass(frozen=True, slots=True)
class Settings:
    """All options of some records, resolved."""

    by_name: Mapping[str, Setting]
    unknown_variables: tuple[str, ...] = ()
    """`TRIVIUM_*` variables that are set and mean nothing, each with a guess at what was meant."""

    def __getitem__(self, name: str) -> Any:
        return self.by_name[name].value

    def values(self, record: type) -> dict[str, Any]:
        """Return the options of a record by name, as `LLM` takes them."""
        return {option.name: self[option.name] for option in options_of(record)}

    def build(self, record: type[R]) -> R:
        """Make a record, and those inside it."""
        sections = sections_of(cast("Any", record))
        made = {
            field.name: self.build(sections[field.name]) if field.name in sections else self[field.name]
            for field in fields(cast("Any", record))
        }
        return record(**made)

    def secrets(self) -> tuple[str, ...]:
        """Return the texts that must not be shown: keys without their names, and as they were written."""
        written = [key for setting in self.by_name.values() if setting.option.is_secret for key in setting.keys]
        return tuple(part for text in written for part in (text, text.partition("=")[2]) if part)


def resolve(
    records: Sequence[type] = RECORDS,
    *,
    flags: Mapping[str, str | Sequence[str] | bool] | None = None,
    arguments: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Find the value of every option of `records`.

    Args:
        records: The records that are wanted.
        flags: Texts of the command line by option name (several when a flag was repeated), or a switch's state.
        arguments: Typed values by option name, as Python code gives them.
        file: A configuration file; `TRIVIUM_CONFIG` names one when `None`.
        environ: Environment variables; the process's own when `None`.

    Raises:
        ConfigError: A name is unknown, or a value is not one that its option can have.
    """
    around = os.environ if environ is None else environ
    known = {option.name: option for record in (*RECORDS, *records) for option in options_of(record)}
    found = {name: Setting(option, option.default, "default") for name, option in known.items()}
    file = file or (Path(around[CONFIG_VARIABLE]) if around.get(CONFIG_VARIABLE) else None)
    if file is not None:
        for name, value in read_file(file, _sections(records)).items():
            option = _known(known, name, str(file))
            found[name] = Setting(option, accept(option, value, str(file)), str(file))
    for name, option in known.items():
        if text := around.get(option.variable, "").strip():
            found[name] = Setting(option, parse(option, text, option.variable), option.variable)
    for name, given in (flags or {}).items():
        option = _known(known, name, "the command line")
        if isinstance(given, bool):
            found[name] = Setting(option, given, option.flag if given else option.flag.replace("--", "--no-", 1))
        else:
            found[name] = Setting(option, parse(option, given, option.flag), option.flag)
    for name, value in (arguments or {}).items():
        option = _known(known, name, "the arguments")
        found[name] = Setting(option, accept(option, value, "argument"), "argument")
    wanted = {option.name: found[option.name] for record in records for option in options_of(record)}
    for name, setting in wanted.items():
        check_value(name, setting.value, setting.origin)
    check_together({name: setting.value for name, setting in wanted.items()})
    return Settings(wanted, tuple(_unknown_variables(around, known)))


def options_from(values: Mapping[str, Any]) -> EngineOptions:
    """Make engine options from option names and values, as `LLM` takes them; reads no file and no environment.

    Raises:
        ConfigError: A name is unknown, a value is not one that its option can have, or only servers have the option.
    """
    options = resolve((EngineOptions,), arguments=values, environ={}).build(EngineOptions)
    if options.cache.kv_events:
        raise ConfigError("only servers have somebody to tell kv_events; leave them out, or use trivium serve")
    return options


def _known(known: Mapping[str, Option], name: str, origin: str) -> Option:
    if name in known:
        return known[name]
    raise ConfigError(f"{origin}: there is no option '{name}'{_guess(name, known)}")


def _guess(name: str, names: Iterable[str], *, prefix: str = "") -> str:
    close = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(prefix + match for match in close)}?" if close else ""


def _sections(records: Sequence[type]) -> dict[str, frozenset[str]]:
    """Name the sections that a file may have: fields of records that are records, and `server`."""
    sections = {
        name: frozenset(option.name for option in options_of(inner))
        for record in (EngineOptions, *records)
        for name, inner in sections_of(record).items()
    }
    return {**sections, "server": frozenset(option.name for option in options_of(ServerOptions))}


def _unknown_variables(environ: Mapping[str, str], known: Mapping[str, Option]) -> Iterable[str]:
    names = {*(option.variable for option in known.values()), *(v.name for v in env.VARIABLES), CONFIG_VARIABLE}
    # Guesses compare what follows the prefix, which would make any two names alike.
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and variable not in names:
            own = [name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX)]
            yield variable + _guess(variable.removeprefix(_PREFIX), own, prefix=_PREFIX)


def _mask(key: str) -> str:
    name, separator, _ = key.partition("=")
    return f"{name}={BLANK}" if separator else BLANK
