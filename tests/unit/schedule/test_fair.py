"""Fair shares: tokens in proportion to weights, whatever is asked for, and nobody hoards credit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scheduling import Bench, full_spec, make_request
from trivium.base.errors import InternalError
from trivium.schedule.fair import QUANTUM, FairShare

jobs = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


@given(jobs, jobs, st.sampled_from([0.5, 1.0, 3.0]))
def test_two_that_always_wait_are_served_by_their_weights(left: list[int], right: list[int], weight: float) -> None:
    fair = FairShare({"left": weight})
    pending = {"left": list(left), "right": list(right)}
    served = dict.fromkeys(pending, 0.0)
    for tenant in pending:
        fair.enter(tenant)
    while all(pending.values()):
        tenant = next(iter(fair.turns()))
        size = pending[tenant].pop()
        served[tenant] += size
        fair.charge(tenant, size)
    most = max(*left, *right)
    slack = QUANTUM + most / min(weight, 1.0)
    assert abs(served["left"] / weight - served["right"]) <= 2 * slack


def test_who_was_away_has_saved_nothing_and_owes_what_he_owed() -> None:
    fair = FairShare({})
    fair.enter("a")
    assert list(fair.turns()) == ["a"]
    assert fair.credits()["a"] == QUANTUM
    fair.leave("a")
    fair.enter("a")
    assert fair.credits()["a"] == 0.0
    fair.charge("a", 900)
    fair.leave("a")
    fair.enter("a")
    assert fair.credits()["a"] == -900.0


def test_large_debts_are_paid_off_at_once() -> None:
    fair = FairShare({"b": 2.0})
    for tenant in "ab":
        fair.enter(tenant)
        fair.charge(tenant, 10**9)
    assert next(iter(fair.turns())) == "b"


def test_a_tenant_stands_in_the_ring_once() -> None:
    fair = FairShare({})
    fair.enter("a")
    with pytest.raises(InternalError, match="stands in the ring already"):
        fair.enter("a")
    assert list(FairShare({}).turns()) == []


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    def started_before(is_fair: bool) -> int:
        bench = Bench(full_spec(4), 400, max_num_seqs=1, order="fcfs", fair_share=is_fair)
        flood = [make_request(f"f{idx}", [idx % 40, *range(30)], max_tokens=8, tenant="flood") for idx in range(50)]
        bench.scheduler.add(*flood)
        bench.step()
        guest = make_request("guest", [41, 42], max_tokens=1, tenant="guest")
        bench.scheduler.add(guest)
        while guest.finish_reason is None:
            bench.step()
        done = sum(request.finish_reason is not None for request in flood)
        bench.run()
        return done

    assert started_before(is_fair=False) == 50
    assert started_before(is_fair=True) <= 30, "a turn is over when its quantum is used up"


def test_weights_decide_whose_answers_come_first() -> None:
    bench = Bench(full_spec(4), 400, max_num_seqs=1, order="fcfs", fair_share=True, tenant_weight=("gold=3",))
    requests = [
        make_request(f"{tenant}{idx}", [idx % 40, idx // 40, *range(98)], max_tokens=28, tenant=tenant)
        for idx in range(40)
        for tenant in ("gold", "iron")
    ]
    bench.scheduler.add(*requests)
    while sum(request.finish_reason is not None for request in requests) < 40:
        bench.step()
    gold = sum(request.finish_reason is not None for request in requests if request.tenant == "gold")
    assert 27 <= gold <= 33
    bench.run()
