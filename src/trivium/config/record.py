"""What a record of options declares, read from its source: names, types, defaults and docstrings.

Flags, environment variables, file keys, documentation and range checks are all made from this list, so that an option
is written down once, where its record is.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

SECRETS = frozenset({"api_key", "admin_key", "bench_api_key"})
"""Options whose values are never shown."""
VERBATIM = frozenset({"stop", "bad_words"})
"""Options of many texts in which a comma is part of a text."""
ADVANCED = {"is_advanced": True}
"""Marks an option that a first start does not need: `--help` counts it, `--help-all` shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of a record of options."""

    name: str
    """Python name, e.g. `max_num_seqs`."""
    record: type
    """The record that declares it."""
    kind: Any
    """Its type without `None`: str, int, float, bool, Path, a `Literal`, `tuple[X, ...]` or `Mapping[int, float]`."""
    is_optional: bool
    """Whether `None` is a value."""
    default: Any
    meaning: str
    """Its docstring."""
    is_reloadable: bool = False
    """Whether a running server takes a new value at SIGHUP."""
    is_advanced: bool = False
    """Whether help pages show it only when everything is asked for."""
    other_flags: tuple[str, ...] = ()
    """Further spellings of its flag, which other engines' users know."""

    @property
    def flag(self) -> str:
        """Command-line flag, e.g. `--max-num-seqs`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable, e.g. `TRIVIUM_MAX_NUM_SEQS`."""
        return "TRIVIUM_" + self.name.upper()

    @property
    def is_secret(self) -> bool:
        """Whether its value is masked wherever it is shown."""
        return self.name in SECRETS

    @property
    def is_split(self) -> bool:
        """Whether commas separate elements of its text; texts that end an answer may contain commas themselves."""
        return self.is_many and self.name not in VERBATIM

    @property
    def element(self) -> Any:
        """Type of one element of a tuple; the type itself otherwise."""
        return get_args(self.kind)[0] if self.is_many else self.kind

    @property
    def is_many(self) -> bool:
        """Whether the value is a tuple."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it can be, or nothing when it is not one of a list."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@cache
def options_of(record: type) -> tuple[Option, ...]:
    """List the options that a record declares, those of records inside it included, in order."""
    hints = get_type_hints(record)
    meanings = _docstrings(record)
    found: list[Option] = []
    for field in fields(record):
        hint = hints[field.name]
        if is_dataclass(hint) and isinstance(hint, type):
            found.extend(options_of(hint))
            continue
        kind, is_optional = _without_none(hint)
        if is_dataclass(get_args(kind)[0] if get_origin(kind) is tuple else kind):
            continue  # what is a record of its own, or a list of these, no flag can say
        found.append(
            Option(
                name=field.name,
                record=record,
                kind=kind,
                is_optional=is_optional,
                default=_default(field),
                meaning=meanings.get(field.name, ""),
                is_reloadable=bool(field.metadata.get("is_reloadable")),
                is_advanced=bool(field.metadata.get("is_advanced")),
                other_flags=field.metadata.get("other_flags", ()),
            )
        )
    return tuple(found)


@cache
def sections_of(record: type) -> Mapping[str, type]:
    """Map the fields of a record that are records themselves to their types."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record) if is_dataclass(hints[field.name])}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True."""
    if get_origin(hint) not in {Union, types.UnionType}:
        return hint, False
    rest = tuple(part for part in get_args(hint) if part is not types.NoneType)
    return Union[rest], len(rest) < len(get_args(hint))  # noqa: UP007  (built at run time)


def _docstrings(record: type) -> Mapping[str, str]:
    return _docstrings_of_module(inspect.getfile(record)).get(record.__name__, {})


@cache
def _docstrings_of_module(path: str) -> Mapping[str, Mapping[str, str]]:
    """Read, per class, the string that follows each field; Python keeps them in the source only."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: _docstrings_of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docstrings_of_class(node: ast.ClassDef) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for before, after in itertools.pairwise(node.body):
        if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[before.target.id] = " ".join(str(after.value.value).split())
    return found
