"""The memory broker: one byte budget, taken from the cgroup rather than the host, lent to weights and KV.

::

    limit (cgroup, or host)
    |-- used by others / this process ---|-- weights --|-- left ------------------------------|
                                                       |-- kv_cache_fraction of it --|- rest -|
"""

from __future__ import annotations

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


def available_bytes() -> int:
    """Bytes this process may still take: the smallest of host and cgroup headroom."""
    return min(_host_available(), _cgroup_available())


def plan_kv(spec: KVSpec, options: CacheOptions, *, weight_bytes: int, available: int | None = None) -> KVBudget:
    """Decide the number of KV pages.

    Args:
        spec: Groups and page length.
        options: `kv_cache_memory`, or `kv_cache_fraction` of what is left.
        weight_bytes: Bytes the weights will take and have not taken yet.
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
        left = max(free - weight_bytes, 0)
        num_bytes = int(left * options.kv_cache_fraction)
        why = (
            f"{options.kv_cache_fraction:g} (kv_cache_fraction) of {format_bytes(left)} left "
            f"({format_bytes(free)} available - {format_bytes(weight_bytes)} weights)"
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


def _host_available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _UNLIMITED
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNLIMITED


def _cgroup_available() -> int:
    """Headroom of the tightest cgroup above this process (v2, then v1); page cache counts as free."""
    tightest = _UNLIMITED
    for limit_path, used_path, stat_path in _cgroup_files():
        limit, used = _read_int(limit_path), _read_int(used_path)
        if limit is None or used is None or limit >= _UNLIMITED:
            continue
        tightest = min(tightest, max(limit - used + _reclaimable(stat_path), 0))
    return tightest


def _cgroup_files() -> list[tuple[Path, Path, Path]]:
    root = Path("/sys/fs/cgroup")
    found = []
    v1 = root / "memory"
    found.append((v1 / "memory.limit_in_bytes", v1 / "memory.usage_in_bytes", v1 / "memory.stat"))
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        own = []
    relative = next((line.split(":", 2)[2].lstrip("/") for line in own if line.startswith("0::")), "")
    folder = root / relative
    while True:
        found.append((folder / "memory.max", folder / "memory.current", folder / "memory.stat"))
        if folder == root or root not in folder.parents:
            break
        folder = folder.parent
    return found


def _reclaimable(stat_path: Path) -> int:
    try:
        lines = stat_path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    pairs = dict(line.split(None, 1) for line in lines if " " in line)
    return int(pairs.get("inactive_file", pairs.get("total_inactive_file", "0")))


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
