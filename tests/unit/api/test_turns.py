"""The lock that is given to its waiters in the order of their arrival."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from trivium.api.turns import Turns

LIMIT_S = 10


def wait_until(holds: Callable[[], bool]) -> None:
    """Spin until other threads have got somewhere."""
    for _ in range(10_000_000):
        if holds():
            return
    pytest.fail("the other threads did not get there")


def queued(turns: Turns, action: Callable[[], object]) -> threading.Thread:
    """Start a thread that waits for a turn behind everybody else's."""
    before = len(turns._waiting)

    def run() -> None:
        with turns:
            action()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(turns._waiting) > before)
    return thread


def test_waiters_come_in_the_order_of_their_arrival() -> None:
    turns = Turns()
    order: list[int] = []
    with turns:
        threads = [queued(turns, lambda k=k: order.append(k)) for k in range(8)]  # type: ignore[misc]
        assert order == []
    for thread in threads:
        thread.join(LIMIT_S)
    assert order == list(range(8))


def test_whoever_leaves_and_comes_back_at_once_waits_behind_the_others() -> None:
    turns = Turns()
    order: list[str] = []
    with turns:
        other = queued(turns, lambda: order.append("other"))
    with turns:
        order.append("again")
    other.join(LIMIT_S)
    assert order == ["other", "again"]


def test_a_turn_is_tried_without_waiting() -> None:
    turns = Turns()
    assert turns.try_enter()
    assert not turns.try_enter()
    turns.leave()
    assert turns.try_enter()


def test_a_turn_cannot_be_tried_in_the_middle_of_another_change() -> None:
    turns = Turns()
    with turns._mutex:
        assert not turns.try_enter()


class Interruption(BaseException):
    """What Ctrl-C raises in a wait."""


class InterruptedLock:
    """A lock whose second `acquire`, the wait, is interrupted, after `before` has run."""

    def __init__(self, before: Callable[[], object]) -> None:
        self.before = before
        self.num_calls = 0

    def acquire(self) -> None:
        self.num_calls += 1
        if self.num_calls == 2:
            self.before()
            raise Interruption

    def release(self) -> None:
        """Whoever leaves passes the turn on."""


@pytest.mark.parametrize("had_come", [False, True])
def test_an_interrupted_wait_leaves_the_turn_to_others(monkeypatch: pytest.MonkeyPatch, had_come: bool) -> None:
    turns = Turns()
    assert turns.try_enter()
    lock = InterruptedLock(turns.leave if had_come else lambda: None)
    real = threading.Lock
    monkeypatch.setattr(threading, "Lock", lambda: lock)
    with pytest.raises(Interruption), turns:
        pytest.fail("the wait was interrupted")
    monkeypatch.setattr(threading, "Lock", real)

    if not had_come:
        assert not turns.try_enter()
        turns.leave()

    assert turns.try_enter()


def test_an_error_inside_a_turn_ends_it() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="inside"), turns:
        raise ValueError("inside")
    assert turns.try_enter()
