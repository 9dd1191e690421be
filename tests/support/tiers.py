"""Tiers for tests: below a scripted executor's pages, which stand for a device's memory."""

from __future__ import annotations

from pathlib import Path

from trivium.cache.spec import KVSpec
from trivium.tiers.disk import DiskTier
from trivium.tiers.host import HostTier
from trivium.tiers.lower import LowerTiers
from trivium.tiers.rates import Rate, Rates
from trivium.tiers.tier import Tier
from trivium.tiers.worker import TierWorker

FACTS = {"model": "scripted"}


def tiers_of(
    spec: KVSpec,
    *,
    disk: Path | None = None,
    disk_pages: int = 10_000,
    host_pages: int | None = None,
    queue_bytes: int = 1 << 30,
    compute_per_s: float = 1e-3,
) -> LowerTiers:
    """Tiers below a scripted executor: disk, host memory, or host memory above disk.

    Args:
        spec: Of the executor.
        disk: Directory of a disk tier.
        disk_pages: How many pages it holds, about.
        host_pages: How many pages a host tier holds; `None` is none.
        queue_bytes: See `TierWorker`.
        compute_per_s: Tokens per second that computing is taken to make until it is measured; reading then wins.
    """
    page_bytes = 8 * spec.page_len
    record_bytes = page_bytes + 4 * spec.page_len
    tier: Tier | None = None
    if disk is not None:
        tier = DiskTier(disk, disk_pages * (record_bytes + 200), FACTS, record_bytes)
    if host_pages is not None:
        tier = HostTier(host_pages * page_bytes, tier)
    assert tier is not None
    rates = Rates(compute=Rate(compute_per_s))
    worker = TierWorker(tier, rates, queue_bytes=queue_bytes, fetch_bytes=1 << 30)
    return LowerTiers(spec, (page_bytes,) * len(spec.groups), worker, rates)
