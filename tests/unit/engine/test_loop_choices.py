"""Answers of one request in the engine loop: what is true of a request is true of all its choices."""

from __future__ import annotations

import pytest

from support.tiny_engine import tiny_loop
from trivium.api import Answers
from trivium.base.clock import FakeClock
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

THREE = SamplingParams(n=3, temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loop(clock: FakeClock) -> EngineLoop:
    """An engine for one answer at a time, in which nobody waits for his start for more than a second."""
    made = tiny_loop(max_num_seqs=1, max_queue_wait=1.0)
    made._clock = made._scheduler._clock = clock
    return made


def run(loop: EngineLoop, answers: Answers) -> None:
    while loop.has_work:
        for news in loop.step():
            if news.request_id == answers.output.request_id:
                answers.add(news)


@pytest.mark.parametrize("num_steps", [1, 2, 5, 6])
def test_a_request_in_the_middle_of_its_answers_is_not_sent_away(
    loop: EngineLoop, clock: FakeClock, num_steps: int
) -> None:
    """After five steps its first answer has ended, and the second has not begun."""
    answers = Answers("a", None, [5, 6], THREE)
    loop.submit(Submit(request_id="a", prompt_ids=[5, 6], params=THREE))
    for _ in range(num_steps):
        for news in loop.step():
            answers.add(news)
    clock.advance(2.0)
    assert loop.queued_requests() == []
    run(loop, answers)
    assert [each.finish_reason for each in answers.output.outputs] == ["length"] * 3


def test_a_request_that_has_not_begun_is_sent_away_with_all_its_answers(loop: EngineLoop, clock: FakeClock) -> None:
    loop.submit(Submit(request_id="first", prompt_ids=[5, 6], params=THREE))
    loop.step()
    answers = Answers("late", None, [7, 8], THREE)
    loop.submit(Submit(request_id="late", prompt_ids=[7, 8], params=THREE))
    assert loop.queued_requests() == ["late"]
    clock.advance(2.0)
    run(loop, answers)
    assert [each.finish_reason for each in answers.output.outputs] == ["error"] * 3
    assert "max_queue_wait" in (answers.output.error or "")
