"""Adapter slots: shared, reused oldest first, never taken from who runs; and requests that wait for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scheduling import Bench, full_spec, make_request
from trivium.base.errors import InternalError
from trivium.base.ids import FinishReason
from trivium.schedule.adapter_slots import AdapterSlots, SlotChange
from trivium.schedule.request import Request, RequestState
from trivium.schedule.timeline import WaitReason


def test_adapters_share_slots_and_the_one_used_longest_ago_goes_first() -> None:
    slots = AdapterSlots(2)
    assert [slots.hold(name) for name in ("a", "b", "a", None)] == [0, 1, 0, -1]
    assert not slots.has_room("c")
    assert slots.has_room("a")
    assert slots.has_room(None)
    for name in ("a", "b", "a", None):
        slots.release(name)
    assert slots.hold("a") == 0  # b was used longest ago now
    assert slots.hold("c") == 1
    assert slots.take_changes() == [SlotChange(0, False, "a"), SlotChange(1, False, "b"), SlotChange(1, True, "c")]
    assert slots.take_changes() == ()


def test_an_adapter_that_was_unloaded_leaves_as_soon_as_nobody_holds_it() -> None:
    slots = AdapterSlots(2)
    for name in ("a", "b"):
        slots.hold(name)
    slots.take_changes()
    slots.retire("a")
    assert slots.take_changes() == ()
    slots.release("a")
    slots.release("b")
    slots.retire("b")
    slots.retire("never there")
    assert slots.take_changes() == [SlotChange(0, True, None), SlotChange(1, True, None)]
    assert slots.num_used == 0


def test_holding_more_than_there_is_room_for_is_an_error() -> None:
    slots = AdapterSlots(1)
    slots.hold("a")
    with pytest.raises(InternalError, match="all 1 adapter slots are held"):
        slots.hold("b")


@given(st.lists(st.tuples(st.sampled_from("hrx"), st.integers(0, 4)), max_size=60))
def test_an_executor_that_follows_the_changes_has_every_held_adapter_in_its_slot(deeds: list[tuple[str, int]]) -> None:
    slots, held = AdapterSlots(3), dict.fromkeys(range(5), 0)
    executor: dict[int, int] = {}
    for deed, name in deeds:
        if deed == "h" and slots.has_room(name):
            slot = slots.hold(name)
            held[name] += 1
        elif deed == "r" and held[name]:
            slots.release(name)
            held[name] -= 1
        elif deed == "x":
            slots.retire(name)
        else:
            assert deed != "h" or sum(map(bool, held.values())) == 3
            continue
        for change in slots.take_changes():
            assert (change.slot in executor) == change.is_taken
            executor.pop(change.slot, None)
            if change.adapter is not None:
                executor[change.slot] = change.adapter
        if deed == "h":
            assert executor[slot] == name
        requests = []
        for each, count in held.items():
            for _ in range(count):
                request = make_request("r", [1], adapter=each)
                request.adapter_slot = next(place for place, inside in executor.items() if inside == each)
                requests.append(request)
        assert slots.problems(requests) == []


# -- in the scheduler -----------------------------------------------------------------------------------------------


def with_adapter(name: str, adapter: str | None, *, max_tokens: int = 4) -> Request:
    prompt = [ord(letter) for letter in name[::-1].ljust(8)]
    return make_request(name, prompt, max_tokens=max_tokens, namespace=(adapter,), adapter=adapter)


def running(bench: Bench) -> dict[str, int]:
    scheduled = bench.step()
    assert bench.scheduler.check() == []
    return {} if scheduled is None else {
        entry.request.request_id: int(slot)
        for entry, slot in zip(scheduled.entries, scheduled.step.adapter_slot, strict=True)
    }  # fmt: skip


def test_requests_without_a_slot_wait_and_block_nobody() -> None:
    bench = Bench(full_spec(), 100, max_num_batched_tokens=64, num_adapter_slots=2)
    asked = {"a1": "a", "b1": "b", "c1": "c", "a2": "a", "base": None, "d1": "d"}
    requests = [with_adapter(name, adapter) for name, adapter in asked.items()]
    bench.scheduler.add(*requests)
    assert running(bench) == {"a1": 0, "b1": 1, "a2": 0, "base": -1}
    assert bench.scheduler.recorder.reason_of(requests[2]) is WaitReason.ADAPTER
    for _ in range(4):
        seen = running(bench)
    assert set(seen) == {"c1", "d1"}  # the others have ended
    assert sorted(seen.values()) == [0, 1]
    while bench.step() is not None:
        pass
    assert all(request.state is RequestState.FINISHED for request in requests)


def test_a_request_that_has_waited_long_is_overtaken_by_nobody_for_its_slot() -> None:
    bench = Bench(full_spec(), 400, max_num_batched_tokens=64, num_adapter_slots=1, aging_s=30.0)
    bench.scheduler.add(with_adapter("a0", "a", max_tokens=6))
    running(bench)
    late = with_adapter("b", "b")
    bench.scheduler.add(late)
    running(bench)
    bench.clock.advance(31.0)
    bench.scheduler.add(with_adapter("a1", "a", max_tokens=50))
    seen: list[dict[str, int]] = []
    while late.state is not RequestState.FINISHED:
        seen.append(running(bench))
    assert not any("a1" in step for step in seen)
    assert "a1" in running(bench)


@pytest.mark.parametrize("how", ["abort", "discard"])
def test_whoever_leaves_the_running_gives_its_slot_back(how: str) -> None:
    bench = Bench(full_spec(), 100, max_num_batched_tokens=64, num_adapter_slots=1)
    first, second = with_adapter("a", "a", max_tokens=20), with_adapter("b", "b", max_tokens=2)
    bench.scheduler.add(first)
    if how == "discard":
        scheduled = bench.next()
        assert scheduled is not None
        bench.scheduler.discard(scheduled)
        assert first.adapter_slot == -1
        assert running(bench) == {"a": 0}
        return
    running(bench)
    bench.scheduler.add(second)
    assert running(bench) == {"a": 0}
    bench.scheduler.abort(first, FinishReason.ABORT)
    assert first.adapter_slot == -1
    assert running(bench) == {"b": 0}
