"""Texts and loosely typed values turned into what an option holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from trivium.base.errors import ConfigError
from trivium.base.log import BLANK
from trivium.config.limits import SIZES, refused
from trivium.config.record import Option
from trivium.config.sizes import parse_bytes

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_NONE = frozenset({"none", "null"})


def parse(option: Option, texts: str | Sequence[str], origin: str) -> Any:
    """Read an option from text: of a flag (several when it was repeated), or of an environment variable.

    Raises:
        ConfigError: The text is not a value of the option's type.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    if get_origin(option.kind) is Mapping:
        return dict(_pair(option, part, origin) for text in given for part in text.split(","))
    if option.is_many:
        parts = [part.strip() for text in given for part in text.split(",")] if option.is_split else given
        return tuple(_scalar(option, part, origin) for part in parts if part)
    if option.is_optional and given[-1].lower() in _NONE:
        return None
    return _scalar(option, given[-1], origin)


def accept(option: Option, value: Any, origin: str) -> Any:
    """Take an option from a file or from Python, where values have types of their own.

    Raises:
        ConfigError: The value is not of the option's type.
    """
    if value is None and option.is_optional:
        return None
    if get_origin(option.kind) is Mapping and isinstance(value, Mapping):
        return dict(value)
    if option.is_many:
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise _refused(option, value, origin, "a list")
        return tuple(_typed(option, part, origin) for part in parts)
    return _typed(option, value, origin)


def _scalar(option: Option, text: str, origin: str) -> Any:
    if option.name.endswith("_bytes"):
        return parse_bytes(text, option=f"{option.name} (from {origin})")
    try:
        return _READERS[_kind_of(option)](text)
    except ValueError:
        raise _refused(option, text, origin, describe_kind(option)) from None


def _pair(option: Option, text: str, origin: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), _number(bias)
    except ValueError:
        raise _refused(option, text, origin, "ID=BIAS, such as 42=-100") from None


def _typed(option: Option, value: Any, origin: str) -> Any:
    kind = _kind_of(option)
    if isinstance(value, bool) != (kind is bool):
        raise _refused(option, value, origin, describe_kind(option))
    if kind is float and isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    if kind is Path and isinstance(value, (str, Path)):
        return Path(value).expanduser()
    if option.name in SIZES and isinstance(value, int):
        return str(value)
    if option.name.endswith("_bytes") and isinstance(value, str):
        return _scalar(option, value, origin)
    if option.choices and isinstance(value, int):  # choices that are written in digits
        value = str(value)
    if option.choices and value in option.choices:
        return value
    if kind in {str, int, bool} and not option.choices and isinstance(value, kind):
        return value
    raise _refused(option, str(value) if isinstance(value, Path) else value, origin, describe_kind(option))


def _refused(option: Option, value: object, origin: str, limit: str) -> ConfigError:
    return refused(option.name, BLANK if option.is_secret else value, origin, limit)


def describe_kind(option: Option) -> str:
    """Say in words what an option may be, e.g. `a whole number` or `one of text, json`."""
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
    kind = f"one of {', '.join(option.choices)}" if option.choices else words[_kind_of(option)]
    return f"{kind}, or none" if option.is_optional and not option.is_many else kind


def _kind_of(option: Option) -> Any:
    if option.choices:
        return option.kind
    return option.element


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("neither true nor false")
    return word in _TRUE


def _whole(text: str) -> int:
    return int(text.strip())


def _path(text: str) -> Path:
    return Path(text).expanduser()


class _Readers(dict[Any, Callable[[str], Any]]):
    """Readers per type; a missing one is that of a list of words."""

    def __missing__(self, kind: Any) -> Callable[[str], Any]:
        def read(text: str) -> str:
            if text not in kind.__args__:
                raise ValueError("not in the list")
            return text

        return read


_READERS = _Readers({str: str, int: _whole, float: _number, bool: _flag, Path: _path})
