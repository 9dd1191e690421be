"""The scheduler's benchmark keeps as many requests running and waiting as it says, and knows what is not flat."""

from __future__ import annotations

import pytest

from benchmarks import scheduler_step
from benchmarks.orders import known_orders, order_option
from benchmarks.scheduler_step import Churn, flatness


@pytest.mark.parametrize("short_of", ["seats", "pages"])
@pytest.mark.parametrize("order", known_orders())
def test_requests_come_as_others_go(order: str, short_of: str) -> None:
    churn = Churn(order, running=4, queued=20, short_of=short_of)
    assert churn.step_ms(40) > 0
    stats = churn._scheduler.stats()
    assert stats.num_finished > 4
    assert stats.num_running + stats.num_waiting == 24
    assert 16 <= stats.num_waiting <= 23


@pytest.mark.parametrize(
    ("cost_ms", "is_flat"),
    [
        (lambda running, queued: 0.1 + 0.01 * running, True),
        (lambda running, queued: 0.1 + 0.01 * running + 0.001 * queued, False),
        (lambda running, queued: 0.1 + 0.0005 * running**2, False),
        (lambda running, queued: 0.002 * running + 0.00004 * queued, True),  # less than a clock can tell
    ],
)
def test_a_step_is_flat_unless_it_grows_with_the_queue_or_faster_than_what_runs(
    monkeypatch: pytest.MonkeyPatch, cost_ms: object, is_flat: bool
) -> None:
    class Scripted:
        def __init__(self, order: str, running: int, queued: int, *, short_of: str) -> None:
            self.step_ms = lambda num_steps: cost_ms(running, queued)  # type: ignore[operator]

    monkeypatch.setattr(scheduler_step, "Churn", Scripted)
    assert flatness(["default"], 10, 1.5) is is_flat


def test_an_order_is_an_option_only_where_the_scheduler_has_it() -> None:
    for order in known_orders():
        assert order_option(order) == ({} if order == "default" else {"order": order})
