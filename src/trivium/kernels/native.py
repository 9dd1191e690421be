"""The native module `trivium._C`: found once, described, or reported missing.

Nothing outside this package imports `trivium._C`. Whether it is there changes speed, and the bits of results (another
order of sums), never whether a result is right. `TRIVIUM_REQUIRE_NATIVE=1` turns a missing module into an error, which
is how continuous integration makes sure that it tests what it means to test. `TRIVIUM_ISA` lowers the instruction set
(avx2, scalar), or goes without the module altogether (numpy).
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from trivium.base import env
from trivium.base.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

_log = logging.getLogger(__name__)

PAGE_LEN = 16
"""Tokens of a KV page: native attention tiles keys and values in pages of this length (csrc/ops/attention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeDescription:
    """What runs the kernels of this process."""

    is_present: bool
    """Whether `trivium._C` was loaded."""
    isa: str
    """Instruction set in use: scalar, avx2, avxvnni, avx512, avx512vnni, amx; "numpy" without the module."""
    detected_isa: str
    """Strongest instruction set of this processor that we have kernels for; "unknown" without the module."""
    threads: int
    """Compute threads, the caller included."""
    compiler: str
    """What built the module, or why there is none."""

    def __str__(self) -> str:
        if not self.is_present:
            return f"NumPy kernels (no native module: {self.compiler})"
        lowered = "" if self.isa == self.detected_isa else f", lowered from {self.detected_isa}"
        return f"native kernels, {self.isa}{lowered}, {self.threads} threads, built by {self.compiler}"


@cache
def _find() -> tuple[ModuleType | None, str]:
    """Import the module once; the second value says why it is missing."""
    if env.ISA.read() == "numpy":
        return None, f"{env.ISA.name}=numpy"
    try:
        module = import_module("trivium._C")
    except ModuleNotFoundError:
        return None, "not built: there was no C++20 compiler, or no Python.h, when Trivium was installed"
    except ImportError as error:
        return None, str(error)
    return module, ""


@cache
def load() -> ModuleType | None:
    """Return `trivium._C`, or `None` (after one warning in the log) where it was not built.

    Raises:
        ConfigError: The module is missing and `TRIVIUM_REQUIRE_NATIVE` is set, or one of the two variables has a
            bad value.
    """
    module, reason = _find()
    if module is None:
        if env.REQUIRE_NATIVE.read():
            raise ConfigError(f"{env.REQUIRE_NATIVE.name} is set, but the native kernels cannot be loaded: {reason}")
        _log.warning("running on NumPy, several times slower; native kernels are missing (%s)", reason)
    return module


def describe() -> NativeDescription:
    """Return what `load` found, without warning about it."""
    module, reason = _find()
    if module is None:
        return NativeDescription(is_present=False, isa="numpy", detected_isa="unknown", threads=1, compiler=reason)
    native = cast("Any", module)
    return NativeDescription(
        is_present=True,
        isa=native.active_isa(),
        detected_isa=native.detected_isa(),
        threads=native.num_threads(),
        compiler=native.compiler(),
    )


def kernel_version() -> str:
    """Return the version of the kernels' sources, by which plans and timings are kept; `none` without the module."""
    module, _ = _find()
    return "none" if module is None else str(cast("Any", module).kernel_version())


def set_num_threads(count: int) -> None:
    """Set the compute threads of the native kernels; without them, only the value is checked.

    Raises:
        ConfigError: `count` is not 1 to 1024.
    """
    if not 1 <= count <= 1024:  # noqa: PLR2004  (the limit of base/parallel.h)
        raise ConfigError(f"threads must be 1 to 1024, not {count}")
    module = load()
    if module is not None:
        module.set_num_threads(count)


def usable_cores() -> int:
    """Return the cores this process may use: its affinity, and with the native module also the cgroup's CPU quota."""
    module = load()
    if module is not None:
        return int(module.usable_cores())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
