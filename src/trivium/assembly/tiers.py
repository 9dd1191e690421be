"""The tiers below KV memory, put together from the options: host memory, disk, both, or none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from trivium.base.errors import ConfigError
from trivium.config.sizes import format_bytes, parse_bytes
from trivium.config.tiers import parse_disk_cache

if TYPE_CHECKING:
    from trivium.assembly.choice import ExecutorParts
    from trivium.assembly.model import OpenModel
    from trivium.config.options import EngineOptions
    from trivium.runtime.executor import Executor
    from trivium.tiers.lower import LowerTiers
    from trivium.tiers.tier import Tier

logger = logging.getLogger(__name__)

_QUEUE_BYTES = 64 << 20
"""Most bytes of pages in memory that wait to be written."""
_FETCH_BYTES = 128 << 20
"""Most bytes of pages that were read, and wait for their requests to start."""


def refuse_host_cache(options: EngineOptions, parts: ExecutorParts) -> None:
    """Refuse a host tier where KV memory is host memory itself.

    Raises:
        ConfigError: It was asked for.
    """
    if options.cache.host_cache is not None and options.executor.device == "cpu":
        raise ConfigError(
            f"host_cache is '{options.cache.host_cache}', but the {parts.name} executor keeps keys and values in host "
            "memory already, so that a host tier would be the same memory twice. Leave host_cache out, and raise "
            "kv_cache_memory instead; disk_cache is the tier below"
        )


def transfer_bytes(options: EngineOptions) -> int:
    """Return the most bytes of pages that are on their way between KV memory and the tiers."""
    has_tiers = options.cache.disk_cache is not None or options.cache.host_cache is not None
    return _QUEUE_BYTES + _FETCH_BYTES if has_tiers else 0


def make_tiers(options: EngineOptions, parts: ExecutorParts, model: OpenModel, executor: Executor) -> LowerTiers | None:
    """Open the tiers that the options ask for.

    Raises:
        ConfigError: The directory of the disk tier cannot be used, or its bound holds too few pages.
    """
    cache = options.cache
    if cache.disk_cache is None and cache.host_cache is None:
        return None
    from trivium.tiers.disk import DiskTier  # noqa: PLC0415  (start-up time)
    from trivium.tiers.host import HostTier  # noqa: PLC0415
    from trivium.tiers.lower import LowerTiers  # noqa: PLC0415
    from trivium.tiers.rates import Rates  # noqa: PLC0415
    from trivium.tiers.worker import TierWorker  # noqa: PLC0415

    tier: Tier | None = None
    if cache.disk_cache is not None:
        folder, limit_bytes = parse_disk_cache(cache.disk_cache, option="disk_cache")
        record_bytes = max(executor.page_bytes) + 4 * parts.kv_spec.page_len
        tier = DiskTier(folder, limit_bytes, _facts(parts, model), record_bytes)
        held = tier.stats()["disk"]
        logger.info("disk cache %s: %s of %s", folder, format_bytes(held.num_bytes), format_bytes(limit_bytes))
    if cache.host_cache is not None:
        tier = HostTier(parse_bytes(cache.host_cache, option="host_cache"), tier)
    if tier is None:
        return None
    rates = Rates()
    worker = TierWorker(tier, rates, queue_bytes=_QUEUE_BYTES, fetch_bytes=_FETCH_BYTES)
    return LowerTiers(parts.kv_spec, executor.page_bytes, worker, rates)


def tier_info(options: EngineOptions) -> dict[str, object]:
    """Say what was asked for."""
    return {"disk_cache": options.cache.disk_cache, "host_cache": options.cache.host_cache}


def _facts(parts: ExecutorParts, model: OpenModel) -> dict[str, object]:
    """List everything on which the bytes of a page depend, but its tokens: pages of other facts are never used."""
    spec = parts.kv_spec
    return {
        "model": model.name,
        "fingerprint": model.checkpoint.fingerprint,
        "executor": parts.name,
        "arithmetic": parts.arithmetic,
        "kv_dtype": parts.kv_dtype,
        "page_len": spec.page_len,
        "groups": [{"kind": group.kind, "layers": list(group.layers), "window": group.window} for group in spec.groups],
        **parts.kernel_facts,
    }
