"""Prefixes that come up from a tier: found, waited for within bounds, imported, counted; victims that are swapped."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from support.scheduling import Bench, full_spec, make_request, mixed_spec, output_of
from support.scripted_executor import tokens_alone
from support.tiers import tiers_of
from trivium.cache.spec import KVSpec
from trivium.engine.stats import EngineStats
from trivium.schedule.below import Approach
from trivium.schedule.request import Request, RequestState
from trivium.schedule.timeline import PreemptionKind, Tier, WaitReason
from trivium.tiers.lower import LowerTiers
from trivium.tiers.page import PageFacts

PROMPT = list(range(1, 41))


def bench_with(tiers: LowerTiers, *, pages: int = 16, **options: object) -> Bench:
    return Bench(tiers.spec, pages, tiers=tiers, **options)


def ask(bench: Bench, name: str, prompt: list[int], **fields: object) -> Request:
    """Run one request alone, and check its tokens."""
    request = make_request(name, prompt, **fields)
    bench.scheduler.add(request)
    bench.run()
    assert output_of(request) == tokens_alone(bench.executor.kv_spec, prompt, len(output_of(request)))
    return request


def fill(bench: Bench) -> None:
    """Push everything out of the pool."""
    num_pages = bench.executor.num_pages[0]
    ask(bench, "filler", [49] * (num_pages * bench.executor.kv_spec.page_len), max_tokens=1)
    assert bench.tiers is not None
    bench.tiers.worker.settle()


def queue_what_was_evicted(bench: Bench) -> Request:
    """Push a prompt out of the pool, ask for it again, and wait until it was read."""
    ask(bench, "first", PROMPT)
    fill(bench)
    request = make_request("request", PROMPT)
    bench.scheduler.add(request)
    assert bench.tiers is not None
    bench.tiers.worker.settle()
    return request


@pytest.mark.parametrize("spec", [full_spec(), full_spec(1), mixed_spec(), mixed_spec(4, 1)])
def test_what_was_evicted_comes_back_and_counts_as_cached(spec: KVSpec, tmp_path: Path) -> None:
    bench = bench_with(tiers_of(spec, disk=tmp_path / "kv"), pages=16 if spec.page_len == 4 else 64)
    ask(bench, "first", PROMPT)
    fill(bench)
    before = bench.executor.num_tokens_run
    again = ask(bench, "again", PROMPT)
    page_len = spec.page_len
    assert again.cached_len == 39 // page_len * page_len
    assert bench.executor.num_tokens_run - before == 40 - again.cached_len + 3
    assert again.timeline.starts[0].cached[Tier.DISK] == again.cached_len
    assert bench.scheduler.stats().hit_tokens == again.cached_len
    bench.tiers.close(bench.executor)


def test_it_comes_back_after_a_restart_too(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    ask(bench, "first", PROMPT)
    bench.tiers.close(bench.executor)
    again = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    request = ask(again, "again", [*PROMPT, 7, 8])
    assert request.cached_len == 40
    again.tiers.close(again.executor)


def test_the_pool_and_the_tier_each_give_their_part(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    ask(bench, "first", PROMPT, max_tokens=1)
    fill(bench)
    ask(bench, "beginning", PROMPT[:17], max_tokens=1)
    request = ask(bench, "whole", PROMPT, max_tokens=1)
    assert request.timeline.starts[0].cached == {Tier.DEVICE: 16, Tier.DISK: 20}
    bench.tiers.close(bench.executor)


def test_salted_prefixes_stay_apart(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    ask(bench, "mine", PROMPT, namespace=("salt", "a"))
    fill(bench)
    assert ask(bench, "theirs", PROMPT, namespace=("salt", "b")).cached_len == 0
    assert ask(bench, "mine again", PROMPT, namespace=("salt", "a")).cached_len == 36
    bench.tiers.close(bench.executor)


def test_a_flush_forgets_the_tiers_too(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    ask(bench, "first", PROMPT)
    fill(bench)
    bench.scheduler.flush()
    assert ask(bench, "again", PROMPT).cached_len == 0
    bench.scheduler.flush()
    assert bench.tiers.stats()["disk"].num_pages == 0
    bench.tiers.close(bench.executor)


def test_prompt_logprobs_take_nothing_beyond_their_first_row(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    ask(bench, "first", PROMPT)
    fill(bench)
    request = ask(bench, "scored", PROMPT, prompt_logprobs=1, prompt_logprob_start=20)
    assert request.cached_len == 16
    assert bench.scored["scored"] == list(range(19, 39))
    bench.tiers.close(bench.executor)


class Gate:
    """Lets a tier's reads through when it is opened."""

    def __init__(self, tiers: LowerTiers) -> None:
        self.tier = tiers.worker._tier
        self.open = threading.Event()
        self.inner = self.tier.get
        self.tier.get = self.get  # type: ignore[method-assign]

    def get(self, facts: PageFacts) -> bytes | None:
        self.open.wait()
        return self.inner(facts)


def test_a_request_waits_for_its_pages_and_others_go_first(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"), pages=30)
    ask(bench, "first", PROMPT)
    fill(bench)
    gate = Gate(bench.tiers)
    waiting = make_request("waiting", PROMPT, max_tokens=2)
    other = make_request("other", [3, 4, 5], max_tokens=2)
    bench.scheduler.add(waiting)
    bench.scheduler.add(other)
    while other.state is not RequestState.FINISHED:
        assert bench.step() is not None
    assert waiting.state is RequestState.WAITING
    assert bench.scheduler.recorder.reason_of(waiting) is WaitReason.TIER
    assert bench.step() is None
    bench.clock.advance(2.0)
    gate.open.set()
    bench.tiers.worker.settle()
    bench.run()
    assert waiting.cached_len == 36
    assert waiting.timeline.starts[0].waited[WaitReason.TIER] == 2.0
    bench.tiers.close(bench.executor)


def test_patience_ends_after_the_time_that_computing_would_take(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv", compute_per_s=1.0), pages=30)
    ask(bench, "first", PROMPT)
    fill(bench)
    gate = Gate(bench.tiers)
    request = make_request("request", PROMPT)
    bench.scheduler.add(request)
    bench.clock.advance(1000.0)  # waiting for its turn costs no patience
    assert bench.step() is None
    bench.clock.advance(35.9)
    assert bench.step() is None
    bench.clock.advance(0.2)
    assert bench.step() is not None
    assert (request.state, request.cached_len) == (RequestState.RUNNING, 0)
    gate.open.set()
    bench.run()
    assert output_of(request) == tokens_alone(full_spec(), PROMPT, 4)
    bench.tiers.close(bench.executor)


def test_nobody_waits_for_pages_that_were_computed_meanwhile(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"), pages=40)
    ask(bench, "first", PROMPT)
    fill(bench)
    gate = Gate(bench.tiers)
    waiting = make_request("waiting", PROMPT, max_tokens=2)
    bench.scheduler.add(waiting)
    assert bench.step() is None
    twin = make_request("twin", PROMPT, max_tokens=1)
    twin.approach = Approach(num_looks=99)  # as if it had given up
    bench.scheduler.add(twin)
    while waiting.state is not RequestState.FINISHED:
        assert bench.step() is not None
    assert waiting.cached_len == 39
    gate.open.set()
    bench.tiers.close(bench.executor)


def test_pages_that_are_there_when_patience_ends_are_used(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv", compute_per_s=1.0), pages=30)
    ask(bench, "first", PROMPT)
    fill(bench)
    gate = Gate(bench.tiers)
    passed = threading.Semaphore(3)
    gate.get = lambda facts: gate.inner(facts) if passed.acquire() else None  # type: ignore[method-assign]
    gate.tier.get = gate.get  # type: ignore[method-assign]
    request = make_request("request", PROMPT)
    bench.scheduler.add(request)
    while request.approach is None or request.approach.fetch is None or len(request.approach.fetch.pages) < 3:
        bench.tiers.worker.wait(0.1)
    assert bench.step() is None
    fetch = request.approach.fetch
    bench.clock.advance(100.0)
    bench.step()
    assert request.cached_len == 12
    passed.release(100)
    bench.tiers.worker.settle()
    assert fetch.num_asked == 4, "the rest is not read"
    bench.run()
    assert output_of(request) == tokens_alone(full_spec(), PROMPT, 4)
    bench.tiers.close(bench.executor)


def test_what_is_quicker_to_compute_is_not_read(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv", compute_per_s=1e12))
    ask(bench, "first", PROMPT)
    fill(bench)
    assert ask(bench, "again", PROMPT).cached_len == 0
    bench.tiers.close(bench.executor)


def test_an_aborted_request_lets_go_of_what_was_read_for_it(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    request = queue_what_was_evicted(bench)
    assert bench.tiers.worker._fetched_bytes > 0
    bench.scheduler.abort(request)
    assert bench.tiers.worker._fetched_bytes == 0
    assert request.approach is None
    bench.tiers.close(bench.executor)


def test_pages_are_imported_once_even_where_the_next_step_is_the_same_record(tmp_path: Path) -> None:
    spec = mixed_spec(page_len=1)  # what is left to compute is one token, and pages leave the window
    bench = bench_with(tiers_of(spec, disk=tmp_path / "kv"), pages=64)
    ask(bench, "first", PROMPT)
    fill(bench)
    request = ask(bench, "again", PROMPT, max_tokens=20)
    assert request.cached_len == 39
    bench.tiers.close(bench.executor)


def test_imports_that_fail_are_computed_instead(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    request = queue_what_was_evicted(bench)
    scheduled = bench.next()
    assert scheduled is not None
    assert len(scheduled.imports) == 9
    bench.scheduler.discard(scheduled, is_import_bad=True)
    assert bench.scheduler.check() == []
    bench.run()
    assert request.cached_len == 0
    assert output_of(request) == tokens_alone(full_spec(), PROMPT, 4)
    bench.tiers.close(bench.executor)


def test_a_discarded_step_keeps_what_was_read(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"))
    request = queue_what_was_evicted(bench)
    scheduled = bench.next()
    assert scheduled is not None
    bench.scheduler.discard(scheduled)
    bench.run()
    assert request.cached_len == 36
    bench.tiers.close(bench.executor)


@pytest.mark.parametrize("mode", ["swap", "auto"])
@pytest.mark.parametrize("spec", [full_spec(), mixed_spec()])
def test_a_victim_is_written_and_comes_back(spec: KVSpec, mode: str, tmp_path: Path) -> None:
    bench = bench_with(tiers_of(spec, disk=tmp_path / "kv"), pages=12, preemption=mode, aging_s=1e9)
    first = make_request("first", PROMPT[:16], max_tokens=28)
    second = make_request("second", [9] * 16, max_tokens=20)
    bench.scheduler.add(first)
    bench.scheduler.add(second)
    while not second.num_preemptions + first.num_preemptions:
        assert bench.step() is not None
    victim = second if second.num_preemptions else first
    lost = victim.timeline.preemptions[0]
    assert lost.kind is PreemptionKind.SWAP
    while victim.state is not RequestState.RUNNING:
        if bench.step() is None:
            bench.tiers.worker.settle()
    found = victim.timeline.starts[1].cached
    assert sum(found.values()) == lost.num_tokens // 4 * 4, "all of its whole pages"
    assert found.get(Tier.DISK, 0) > 0
    bench.run()
    for request in (first, second):
        prompt = request.tokens[: request.prompt_len]
        assert output_of(request) == tokens_alone(spec, prompt, len(output_of(request)))
    assert bench.scheduler.recorder.preemptions[PreemptionKind.SWAP] > 0
    bench.tiers.close(bench.executor)


def test_auto_computes_anew_where_that_is_quicker(tmp_path: Path) -> None:
    tiers = tiers_of(full_spec(), disk=tmp_path / "kv", compute_per_s=1e12)
    bench = bench_with(tiers, pages=12, preemption="auto")
    bench.scheduler.add(make_request("first", PROMPT[:16], max_tokens=28))
    bench.scheduler.add(make_request("second", [9] * 16, max_tokens=20))
    bench.run()
    counts = bench.scheduler.recorder.preemptions
    assert counts[PreemptionKind.RECOMPUTE] > 0
    assert counts[PreemptionKind.SWAP] == 0
    bench.tiers.close(bench.executor)


def test_hot_pages_are_written_while_nothing_runs(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv"), pages=64)
    ask(bench, "first", PROMPT)
    assert not bench.tiers.write_hot(bench.executor)
    bench.tiers.worker.settle()
    assert bench.tiers.stats()["disk"].num_pages == 0
    ask(bench, "second", [*PROMPT[:24], 1])
    bench.tiers.write_hot(bench.executor)
    bench.tiers.worker.settle()
    assert bench.tiers.stats()["disk"].num_pages == 6
    bench.tiers.close(bench.executor)


def test_host_memory_above_the_disk(tmp_path: Path) -> None:
    spec = full_spec()
    bench = bench_with(tiers_of(spec, disk=tmp_path / "kv", host_pages=5), pages=16)
    ask(bench, "first", PROMPT, max_tokens=1)
    fill(bench)
    request = ask(bench, "again", PROMPT, max_tokens=1)
    found = request.timeline.starts[0].cached
    assert sum(found.values()) == 36
    assert found[Tier.DISK] > 0
    assert set(found) <= {Tier.DEVICE, Tier.HOST, Tier.DISK}
    fill(bench)
    assert bench.tiers.stats()["host"].num_pages == 5
    bench.tiers.close(bench.executor)
    again = bench_with(tiers_of(spec, disk=tmp_path / "kv"))
    assert ask(again, "again", PROMPT).cached_len == 36
    again.tiers.close(again.executor)


def test_counters_of_the_tiers_are_those_of_the_engine_s_statistics(tmp_path: Path) -> None:
    bench = bench_with(tiers_of(full_spec(), disk=tmp_path / "kv", host_pages=3))
    ask(bench, "first", PROMPT)
    fill(bench)
    ask(bench, "again", PROMPT)
    bench.tiers.worker.settle()
    counters = bench.tiers.counters()
    assert set(counters) <= {field.name for field in msgspec.structs.fields(EngineStats)}
    assert {name: set(by) for name, by in counters.items() if name != "tier_rates"} == {
        name: {"host", "disk"} for name in counters if name != "tier_rates"
    }
    assert counters["tier_pages"]["host"] == 3
    assert counters["tier_read_bytes_total"]["disk"] > 0
    assert set(counters["tier_rates"]) == {"read", "written"}, "the clock of tests stands still"
    bench.tiers.close(bench.executor)
