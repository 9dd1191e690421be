"""Every environment variable that Trivium reads by itself, typed, in one table.

Options of a server or an `LLM` also come from variables (`TRIVIUM_` and the option's name in capitals); those are
derived from `config.options`. What stands here is for paths, debugging and other programs' conventions. A variable
that is unset or empty has its default; a bad value is an error that names the variable, never a silent default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from trivium.base.errors import ConfigError

T = TypeVar("T")

ISA_LEVELS = ("numpy", "scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx")
"""Levels of the kernels, weakest first; numpy goes without the native module."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Variable(Generic[T]):
    """One environment variable: its name, what it means, its default, and how its text is read."""

    name: str
    meaning: str
    default: T
    parse: Callable[[str], T]

    def read(self, environ: Mapping[str, str] | None = None) -> T:
        """Return the variable's value, or its default when it is unset or empty.

        Args:
            environ: Where to look; the process's environment when `None`.

        Raises:
            ConfigError: The text is not a value of this variable.
        """
        text = (os.environ if environ is None else environ).get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"environment variable {self.name} is {text!r}; it must be {error}") from None


def _flag(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("1, true, yes or on, or 0, false, no or off")
    return word in _TRUE


def _isa(text: str) -> str:
    if text not in ISA_LEVELS:
        raise ValueError(f"one of {', '.join(ISA_LEVELS)}")
    return text


def _directory(text: str) -> Path:
    return Path(text).expanduser()


def _existing_directory(text: str) -> Path:
    path = _directory(text)
    if not path.is_dir():
        raise ValueError("a directory that exists")
    return path


ISA: Variable[str | None] = Variable(
    "TRIVIUM_ISA", "Strongest instruction-set level the native kernels may use; can only lower it.", None, _isa
)
REQUIRE_NATIVE: Variable[bool] = Variable(
    "TRIVIUM_REQUIRE_NATIVE",
    "Fail when the compiled kernels are missing, instead of using NumPy.",
    default=False,
    parse=_flag,
)
CACHE_DIR: Variable[Path | None] = Variable(
    "TRIVIUM_CACHE_DIR", "Where downloaded models are kept; the cache_dir option comes first.", None, _directory
)
WHEEL_DIR: Variable[Path | None] = Variable(
    "TRIVIUM_WHEEL_DIR",
    "Directory of wheels that catalog models are taken from before any download.",
    None,
    _existing_directory,
)
XDG_CACHE_HOME: Variable[Path | None] = Variable(
    "XDG_CACHE_HOME", "The user's cache directory, in which trivium/ is made.", None, _directory
)
HF_HUB_OFFLINE: Variable[bool] = Variable(
    "HF_HUB_OFFLINE", "Never ask the Hugging Face hub; take its models from its cache.", default=False, parse=_flag
)
HF_HOME: Variable[Path | None] = Variable(
    "HF_HOME", "Where huggingface_hub keeps its cache and token (read by that library).", None, _directory
)
HF_TOKEN: Variable[str | None] = Variable("HF_TOKEN", "Token for gated models of the hub.", None, str)

VARIABLES: tuple[Variable[Any], ...] = (
    ISA,
    REQUIRE_NATIVE,
    CACHE_DIR,
    WHEEL_DIR,
    XDG_CACHE_HOME,
    HF_HUB_OFFLINE,
    HF_HOME,
    HF_TOKEN,
)
"""The whole table, in the order of the documentation."""


def check_all(environ: Mapping[str, str] | None = None) -> None:
    """Read every variable once, so that a bad value is reported at start-up.

    Raises:
        ConfigError: A variable has a bad value.
    """
    for variable in VARIABLES:
        variable.read(environ)
