"""Tiers below the pool change no token: whatever is written, lost, damaged, read back late, or found after a restart.

The scheduler's state machine once more, over a disk tier, a host tier, or both; the pool of the scripted executor
stands for a device's memory. A page that comes back with other content, or in another place, changes the tokens.
"""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from laws.test_scheduler import SchedulerStory
from support.tiers import tiers_of
from trivium.cache.spec import KVSpec


class TierStory(SchedulerStory):
    """Like its base; and the disk's files are damaged, the disk is slow or quick, and the engine starts anew."""

    folder: Path | None = None

    def further_options(self, spec: KVSpec, data: st.DataObject) -> dict[str, Any]:
        self.folder = Path(mkdtemp(prefix="trivium-tiers-"))
        kind = data.draw(st.sampled_from(["disk", "disk", "host", "both"]), label="tiers")
        self.make_tiers = partial(
            tiers_of,
            spec,
            disk=None if kind == "host" else self.folder / "kv",
            disk_pages=data.draw(st.sampled_from([16, 40, 1000]), label="pages on disk"),
            host_pages=None if kind == "disk" else data.draw(st.integers(1, 30), label="pages in host memory"),
            queue_bytes=data.draw(st.sampled_from([1, 500, 1 << 20]), label="bytes of the queue"),
            compute_per_s=data.draw(st.sampled_from([1e-3, 1.0, 1e12]), label="tokens per second"),
        )
        self.tiers = self.make_tiers()
        return {
            "tiers": self.tiers,
            "prefix_cache": True,
            "preemption": data.draw(st.sampled_from(["recompute", "swap", "auto"]), label="preemption"),
        }

    @rule()
    def let_the_disk_finish(self) -> None:
        self.tiers.worker.settle()

    @rule()
    def use_an_idle_moment(self) -> None:
        self.tiers.write_hot(self.bench.executor)

    @rule(seed=st.integers(0, 1000))
    def damage_files(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311
        for path in sorted((self.folder or Path()).glob("kv/*.kv")):
            raw = bytearray(path.read_bytes())
            for _ in range(chance.randrange(4)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            path.write_bytes(raw)

    @rule(is_orderly=st.booleans())
    def start_anew(self, is_orderly: bool) -> None:
        """The engine ends after what is open, in good order or not; the next one finds what the disk has."""
        self.bench.run()
        for request in self.requests:
            self.assert_as_if_alone(request)
        self.requests.clear()
        if is_orderly:
            self.tiers.close(self.bench.executor)
        else:
            self.tiers.worker.close()
        self.tiers = self.make_tiers()
        self.bench = self.make_bench(tiers=self.tiers)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if self.folder is not None:
                self.tiers.close(self.bench.executor)
                shutil.rmtree(self.folder)


QUICK = settings(max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
TierStory.TestCase.settings = QUICK
TestTierStory = TierStory.TestCase


@pytest.mark.soak
def test_long_stories_of_tiers_hold_too() -> None:
    run_state_machine_as_test(TierStory, settings=LONG)
