"""Where a device runs by itself, the next step is launched before the last one is read; nothing is lost between.

Told by the order of calls, never by a clock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.late_executor import END_ID, LateExecutor, PromptExecutor, loop_over
from support.scheduling import full_spec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.engine.journal import Journal, read_journal
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Delta, Submit
from trivium.engine.step_trace import LoopTrace, StepTrace

BOTH = pytest.mark.parametrize("kind", [PromptExecutor, LateExecutor])
PROMPT = [3, 1, 4]


def make_loop(kind: type[PromptExecutor] = LateExecutor, **options: int) -> tuple[EngineLoop, PromptExecutor]:
    executor = kind(full_spec(), [64])
    return loop_over(executor, ScheduleOptions(**options)), executor  # type: ignore[arg-type]


def submit(loop: EngineLoop, name: str, prompt: Sequence[int] = PROMPT, **params: object) -> None:
    chosen = {"temperature": 0.0, "seed": 1, "max_tokens": 12, "ignore_eos": True, **params}
    loop.submit(Submit(request_id=name, prompt_ids=list(prompt), params=SamplingParams(**chosen)))  # type: ignore[arg-type]


def run(loop: EngineLoop) -> list[Delta]:
    news = []
    while loop.has_work:
        news += loop.step()
    assert loop.check() == []
    return news


def drawn(news: Sequence[Delta], name: str = "a") -> list[int]:
    return [token for delta in news if delta.request_id == name for token in delta.token_ids]


def ends(news: Sequence[Delta]) -> dict[str, str]:
    found = [(delta.request_id, delta.finish_reason) for delta in news if delta.finish_reason is not None]
    assert len(dict(found)) == len(found), "an answer ended twice"
    return dict(found)


def alone(prompt: Sequence[int] = PROMPT, **params: object) -> list[int]:
    loop, _ = make_loop(PromptExecutor)
    submit(loop, "a", prompt, **params)
    return drawn(run(loop))


def told_by(loop: EngineLoop, executor: PromptExecutor) -> list[str]:
    """Return the list in which the order of calls comes to stand."""
    told: list[str] = []
    executor.tell = told.append

    def tell(holder: object, method: str, name: str) -> None:
        call = getattr(holder, method)

        def telling(*given: object) -> object:
            told.append(name)
            return call(*given)

        setattr(holder, method, telling)

    tell(loop._scheduler, "commit", "commit")
    tell(loop, "_read", "read")
    return told


# -- order -----------------------------------------------------------------------------------------------------------


def test_the_next_step_is_launched_before_the_last_one_is_read() -> None:
    loop, executor = make_loop()
    told = told_by(loop, executor)
    submit(loop, "a", max_tokens=3)
    submit(loop, "b", [5, 9], max_tokens=3)
    run(loop)
    launch, collect = ["forward", "sample"], ["wait", "commit"]
    of_prepared = ["wait", "forward", "commit", "sample"]
    assert told == [*launch, *collect, *launch, "read", *of_prepared, "read", *collect, "read"]


def test_a_step_that_was_prepared_is_launched_before_the_last_one_is_recorded() -> None:
    loop, executor = make_loop(max_num_seqs=2)
    told = told_by(loop, executor)
    submit(loop, "a", max_tokens=6)
    submit(loop, "b", [5, 9], max_tokens=9)
    for _ in range(2):
        loop.step()
    told.clear()
    loop.step()
    assert told == ["wait", "forward", "commit", "sample", "read"]
    told.clear()
    submit(loop, "c")  # no seat is free, so the same two go on
    loop.step()
    assert told == ["wait", "forward", "commit", "sample", "read"]
    told.clear()
    loop.abort(["b"])  # now there is one
    loop.step()
    assert told == ["wait", "commit", "forward", "sample", "read"]
    assert ends(run(loop)) == {"a": "length", "c": "length"}


def test_a_step_that_was_prepared_is_not_launched_when_a_token_ends_an_answer() -> None:
    tokens = alone()
    at = next(idx for idx in range(3, 9) if tokens[idx] not in tokens[:idx])
    loop, executor = make_loop()
    told = told_by(loop, executor)
    submit(loop, "a", stop_token_ids=(tokens[at],))
    submit(loop, "b", [9], max_tokens=30)
    news: list[Delta] = []
    while "a" not in ends(news):
        told.clear()
        news += loop.step()
    assert told == ["wait", "commit", "forward", "sample", "read"]
    assert drawn(news) == tokens[: at + 1]
    assert drawn([*news, *run(loop)], "b") == alone([9], max_tokens=30)


def test_a_step_that_was_prepared_waits_for_the_record_where_a_grammar_may_end_an_answer() -> None:
    loop, executor = make_loop()
    told = told_by(loop, executor)
    submit(loop, "a", max_tokens=9)
    for _ in range(3):
        loop.step()
    loop._num_constrained += 1  # as if one of the open answers were under a grammar
    told.clear()
    loop.step()
    loop._num_constrained -= 1
    assert told == ["wait", "commit", "forward", "sample", "read"]
    run(loop)


def test_an_executor_that_computes_when_it_is_called_is_read_before_the_next_step() -> None:
    loop, executor = make_loop(PromptExecutor)
    told = told_by(loop, executor)
    submit(loop, "a", max_tokens=3)
    run(loop)
    assert told == ["forward", "sample", "commit", "read"] * 3


def test_news_come_from_a_call_that_leaves_the_next_step_running() -> None:
    loop, executor = make_loop()
    told = told_by(loop, executor)
    submit(loop, "a")
    [accepted, first] = loop.step()
    assert (accepted.token_ids, len(first.token_ids)) == ([], 1)
    assert told[-3:] == ["forward", "sample", "read"]
    submit(loop, "b", [7])  # while it runs
    assert [news.request_id for news in loop.step()] == ["b", "a"]
    run(loop)


# -- ends -------------------------------------------------------------------------------------------------------------


def num_tokens_run(kind: type[PromptExecutor], **params: object) -> int:
    loop, executor = make_loop(kind)
    submit(loop, "a", **params)
    run(loop)
    return executor.num_tokens_run


def test_only_an_end_that_the_text_tells_costs_a_row() -> None:
    tokens = alone()
    stop = {"stop": (chr(tokens[4]),)}
    assert tokens.index(tokens[4]) == 4
    at_length, at_token = {"max_tokens": 5}, {"stop_token_ids": (tokens[4],)}
    for params, wasted in ((at_length, 0), (at_token, 0), (stop, 1)):
        assert num_tokens_run(LateExecutor, **params) - num_tokens_run(PromptExecutor, **params) == wasted
        assert alone(**params) == tokens[:5]


@BOTH
def test_a_text_that_stops_at_the_last_token_says_stop(kind: type[PromptExecutor]) -> None:
    tokens = alone()
    loop, _ = make_loop(kind)
    loop.report_ends()
    submit(loop, "a", max_tokens=5, stop=(chr(tokens[4]),))
    assert ends(run(loop)) == {"a": "stop"}
    assert [(ended.finish_reason, ended.output_len) for ended in loop.take_ended()] == [("stop", 5)]
    assert loop.stats()["finished_total"] == {"stop": 1}


@BOTH
def test_end_tokens_are_held_back_for_exactly_min_tokens(kind: type[PromptExecutor]) -> None:
    prompt = next(ids for first in range(99) if alone(ids := [first, 2])[2] == END_ID)
    for min_tokens, is_held_back in ((2, False), (3, True)):
        loop, _ = make_loop(kind)
        submit(loop, "a", prompt, ignore_eos=False, min_tokens=min_tokens)
        assert (drawn(run(loop))[2] == END_ID) is not is_held_back


def test_who_is_aborted_while_his_step_runs_is_gone_and_the_others_are_not() -> None:
    loop, _ = make_loop()
    for name, prompt in (("a", PROMPT), ("b", [9])):
        submit(loop, name, prompt)
    before = [news for _ in range(3) for news in loop.step()]
    loop.abort(["a"])
    assert loop.check() == []
    submit(loop, "a", [9, 9])  # the name is free again
    news = run(loop)
    assert drawn([*before, *news], "b") == alone([9])
    assert drawn(news, "a") == alone([9, 9])


def test_a_step_whose_requests_are_all_gone_is_still_waited_for() -> None:
    loop, executor = make_loop()
    submit(loop, "a")
    loop.step()
    loop.abort(["a"])
    assert loop.has_work
    told = told_by(loop, executor)
    assert run(loop) == []
    assert told == ["wait", "commit", "read"]
    assert loop.stats()["kv_pages_used"] == 0


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["forward", "sample"])
def test_a_launch_that_fails_does_not_take_the_tokens_of_the_step_before(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    loop, executor = make_loop()
    submit(loop, "a")
    before = loop.step()
    with monkeypatch.context() as patch:
        patch.setattr(executor, where, lambda *_: 1 / 0)
        before += loop.step()
    assert drawn(before) == alone()[:2]
    if where == "sample":
        executor._step = None  # type: ignore[attr-defined]
    [failed] = run(loop)
    assert (failed.finish_reason, failed.first_token) == ("error", 2)


def test_a_step_that_fails_on_the_device_ends_its_requests_and_nothing_else() -> None:
    loop, executor = make_loop()
    assert isinstance(executor, LateExecutor)
    submit(loop, "a")
    before = loop.step()
    submit(loop, "b", [9])
    executor.fails = RuntimeError("the device is lost")
    news = [*before, *run(loop)]
    assert ends(news) == {"a": "error", "b": "length"}
    assert drawn(news, "b") == alone([9])


def test_an_interrupted_wait_is_taken_up_again() -> None:
    loop, executor = make_loop()
    assert isinstance(executor, LateExecutor)
    submit(loop, "a")
    before = loop.step()
    executor.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    assert drawn([*before, *run(loop)]) == alone()


def test_an_interrupted_launch_loses_neither_the_step_before_nor_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    loop, executor = make_loop()
    submit(loop, "a")
    before = loop.step()
    with monkeypatch.context() as patch:
        patch.setattr(executor, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop.step()
    assert drawn([*before, *run(loop)]) == alone()


def test_a_loop_that_closes_waits_for_the_running_step() -> None:
    loop, executor = make_loop()
    submit(loop, "a")
    loop.step()
    told = told_by(loop, executor)
    loop.close()
    assert told == ["wait", "close"]


def test_the_journal_names_who_runs_and_who_is_still_to_be_read(tmp_path: Path) -> None:
    loop, executor = make_loop()
    loop.journal = Journal(tmp_path)
    named: list[set[str]] = []
    executor.tell = lambda event: named.append(set(read_journal(tmp_path).step)) if event == "forward" else None
    submit(loop, "a", max_tokens=2)
    submit(loop, "b", [9], max_tokens=5)
    run(loop)
    assert named == [{"a", "b"}] * 4 + [{"b"}]


# -- the trace --------------------------------------------------------------------------------------------------------


def test_the_trace_shows_what_the_device_does_meanwhile(tmp_path: Path) -> None:
    loop, executor = make_loop()
    LoopTrace(StepTrace(tmp_path / "steps.json", 1 << 20), loop, executor, loop._scheduler)
    submit(loop, "a", max_tokens=3)
    run(loop)
    loop.close()
    events = [event for event in json.loads((tmp_path / "steps.json").read_text()) if event["ph"] == "X"]
    assert Counter(event["name"] for event in events) == dict.fromkeys(
        ("step", "choose", "forward", "sample", "wait", "run", "commit", "read"), 3
    )
    assert [event["args"]["tokens"] for event in events if event["name"] == "step"] == [3, 1, 1]
    tracks = {event["name"]: event["tid"] for event in events}
    assert {name for name, track in tracks.items() if track != tracks["step"]} == {"run"}
    runs = [event for event in events if event["name"] == "run"]
    reads = [event for event in events if event["name"] == "read"]
    for read, run_ in zip(reads, runs[1:], strict=False):
        assert run_["ts"] <= read["ts"]
        assert read["ts"] + read["dur"] <= run_["ts"] + run_["dur"]
