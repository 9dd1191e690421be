"""The memory broker: one byte budget, taken from the cgroup rather than the host, lent to weights and KV.

::

    limit (cgroup, or host)
    |-- used by others / this process ---|-- weights --|-- left ------------------------------|
                                                       |-- kv_cache_fraction of it --|- rest -|
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.base.errors import ConfigError
from trivium.config.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from trivium.cache.spec import KVSpec
    from trivium.config.options import CacheOptions

_MIN_PAGES_TOKENS = 64
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class KVBudget:
    """How much KV memory there is, and the sentence that says why."""

    num_bytes: int
    num_pages: tuple[int, ...]
    num_tokens: int
    """Tokens that fit when every group holds all of them."""
    explanation: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the kernel says what memory there is; tests point it at folders of their own."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")


def available_bytes(machine: Machine = Machine()) -> int:
    """Bytes this process may still take: the smallest of host, cgroup and address-space headroom."""
    return min(_host_available(machine), _cgroup_available(machine), _address_space_available(machine))


def plan_kv(
    spec: KVSpec, options: CacheOptions, *, weight_bytes: int, transfer_bytes: int = 0, available: int | None = None
) -> KVBudget:
    """Decide the number of KV pages.

    Args:
        spec: Groups and page length.
        options: `kv_cache_memory`, or `kv_cache_fraction` of what is left.
        weight_bytes: Bytes the weights will take and have not taken yet.
        transfer_bytes: Bytes of the pages that may be on their way to lower tiers and back.
        available: Bytes the process may take; measured when `None`.

    Raises:
        ConfigError: Not even a few pages fit; says how much there is and what is needed.
    """
    page_bytes = spec.bytes_per_token * spec.page_len
    free = available_bytes() if available is None else available
    if options.kv_cache_memory is not None:
        num_bytes = parse_bytes(options.kv_cache_memory, option="kv_cache_memory")
        why = f"kv_cache_memory = {format_bytes(num_bytes)}"
    else:
        left = max(free - weight_bytes - transfer_bytes, 0)
        transfer = (
            f" - {format_bytes(transfer_bytes)} for pages on their way to the tiers below" if transfer_bytes else ""
        )
        num_bytes = int(left * options.kv_cache_fraction)
        why = (
            f"{options.kv_cache_fraction:g} (kv_cache_fraction) of {format_bytes(left)} left "
            f"({format_bytes(free)} available - {format_bytes(weight_bytes)} weights{transfer})"
        )
    num_pages = num_bytes // page_bytes
    needed = -(-_MIN_PAGES_TOKENS // spec.page_len) + 1
    if num_pages < needed:
        raise ConfigError(
            f"KV memory is {format_bytes(num_bytes)} ({why}), which holds {num_pages} pages of {spec.page_len} tokens "
            f"({format_bytes(page_bytes)} each); at least {needed} are needed. Free memory, or set --kv-cache-memory"
        )
    tokens = num_pages * spec.page_len
    explanation = (
        f"KV cache: {why} -> {format_bytes(num_pages * page_bytes)} = {num_pages} pages of {spec.page_len} tokens "
        f"= {tokens} tokens at {format_bytes(spec.bytes_per_token)} each"
    )
    return KVBudget(num_pages * page_bytes, (num_pages,) * len(spec.groups), tokens, explanation)


def _host_available(machine: Machine) -> int:
    for line in _lines(machine.proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _address_space_available(machine: Machine) -> int:
    """Headroom under `ulimit -v`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return _UNLIMITED
    statm = _lines(machine.proc / "self" / "statm")
    used = int(statm[0].split()[0]) * resource.getpagesize() if statm else 0
    return max(limit - used, 0)


def _cgroup_available(machine: Machine) -> int:
    """Headroom of the tightest cgroup above this process (v2, then v1); page cache counts as free."""
    tightest = _UNLIMITED
    for folder, names in _cgroup_folders(machine):
        limit, used = _read_int(folder / names.limit), _read_int(folder / names.used)
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        tightest = min(tightest, max(limit - used + _reclaimable(folder / "memory.stat", names.reclaimable), 0))
    return tightest


@dataclass(frozen=True, slots=True)
class _Names:
    """What a cgroup version calls its files."""

    limit: str
    used: str
    reclaimable: str
    """Key in memory.stat of page cache that the kernel gives up first, child groups included."""


_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names("memory.max", "memory.current", "inactive_file")


def _cgroup_folders(machine: Machine) -> list[tuple[Path, _Names]]:
    """List the folders of the groups that this process is in, from its own up to the root."""
    found: list[tuple[Path, _Names]] = []
    for line in _lines(machine.proc / "self" / "cgroup"):
        _, controllers, relative = line.split(":", 2)
        if controllers == "":
            found += [(folder, _V2) for folder in _upwards(machine.cgroups, relative)]
        elif "memory" in controllers.split(","):
            found += [(folder, _V1) for folder in _upwards(machine.cgroups / "memory", relative)]
    return found


def _upwards(root: Path, relative: str) -> list[Path]:
    folder = root / relative.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _reclaimable(stat_path: Path, key: str) -> int:
    for line in _lines(stat_path):
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read_int(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
