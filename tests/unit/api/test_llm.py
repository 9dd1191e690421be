"""`LLM` on the tiny model: open streams beside each other, many threads, full queues, interruptions."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.tiny_engine import tiny_model
from trivium import LLM, SamplingParams
from trivium.base.errors import CapacityError, InvalidParameterError, PromptTooLongError, UnsupportedFeatureError
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Delta

LIMIT_S = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "hello"}]


def tiny_llm(**options: Any) -> LLM:
    return LLM(str(tiny_model()), **{"kv_cache_memory": "1MiB", "threads": 1, "seed": 0, **options})


@pytest.fixture
def llm() -> Iterator[LLM]:
    with tiny_llm() as own:
        yield own


@pytest.fixture(scope="module")
def reference() -> Iterator[LLM]:
    with tiny_llm() as own:
        yield own


def loop_of(llm: LLM) -> EngineLoop:
    loop = llm._shared._loop
    assert loop is not None
    return loop


def assert_nothing_is_open(llm: LLM) -> None:
    assert not loop_of(llm).open_requests
    assert not llm._shared._inboxes
    assert not llm._shared._left
    assert loop_of(llm).check() == []


def tokens_of(llm: LLM, prompts: Any, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def joined(news: list[Delta]) -> list[int]:
    return [token for one in news for token in one.token_ids]


def before_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Run `action` once, inside the next step."""
    loop = loop_of(llm)
    step, has_run = loop.step, []

    def acting() -> list[Delta]:
        if not has_run:
            has_run.append(True)
            action()
        return step()

    monkeypatch.setattr(loop, "step", acting)


# -- streams beside each other ------------------------------------------------------------------------------------


def test_two_streams_read_in_turn_lose_nothing(llm: LLM, reference: LLM) -> None:
    expected = tokens_of(reference, ["one", "two and more"])
    streams = [llm.stream("one", GREEDY), llm.stream("two and more", GREEDY)]
    got: list[list[Delta]] = [[], []]
    for pair in itertools.zip_longest(*streams):
        for own, news in zip(got, pair, strict=True):
            own.extend([news] if news is not None else [])
    assert [joined(news) for news in got] == expected
    assert_nothing_is_open(llm)


def test_a_stream_goes_on_after_a_whole_generate_in_between(llm: LLM, reference: LLM) -> None:
    stream = llm.stream("one", GREEDY)
    begun = [next(stream), next(stream)]
    assert tokens_of(llm, ["two", "three"]) == tokens_of(reference, ["two", "three"])
    assert joined([*begun, *stream]) == tokens_of(reference, "one")[0]
    assert_nothing_is_open(llm)


def test_a_stream_with_several_answers_ends_with_the_last_of_them(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=5, seed=1, ignore_eos=True)
    news = list(llm.stream("one", params))
    assert sorted(one.choice for one in news if one.finish_reason) == [0, 1, 2]
    whole = llm.generate("one", params)[0].outputs
    assert [joined([one for one in news if one.choice == k]) for k in range(3)] == [a.token_ids for a in whole]


def test_leaving_a_stream_early_aborts_its_request(llm: LLM) -> None:
    for news in llm.stream("one", GREEDY):
        if news.token_ids:
            break
    gc.collect()
    assert_nothing_is_open(llm)


def test_a_stream_that_was_never_read_holds_nothing(llm: LLM) -> None:
    stream = llm.stream("one", GREEDY)
    assert_nothing_is_open(llm)
    stream.close()
    assert list(stream) == []


def test_a_stream_that_dies_in_the_middle_of_a_step_is_aborted_afterwards(
    llm: LLM, reference: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = llm.stream("one", GREEDY)
    next(stream)
    before_step(llm, monkeypatch, stream.close)
    assert tokens_of(llm, "two") == tokens_of(reference, "two")
    assert_nothing_is_open(llm)


# -- threads ------------------------------------------------------------------------------------------------------


def test_threads_get_the_answers_of_a_single_one(llm: LLM, reference: LLM) -> None:
    batches = [[f"thread {k}, prompt {i} " * (1 + i) for i in range(4)] for k in range(6)]
    params = SamplingParams(n=2, temperature=1.0, seed=7, max_tokens=16, logprobs=1)

    def whole(owner: LLM, batch: list[str]) -> list[Any]:
        return [(o.prompt, o.prompt_token_ids, o.outputs) for o in owner.generate(batch, params)]

    expected = [whole(reference, batch) for batch in batches]
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = [pool.submit(whole, llm, batch) for batch in batches]
        assert [future.result(LIMIT_S) for future in futures] == expected
    assert_nothing_is_open(llm)


def test_threads_may_stream_chat_and_generate_together(llm: LLM, reference: LLM) -> None:
    def chatted(owner: LLM) -> list[int]:
        return owner.chat(MESSAGES, GREEDY)[0].outputs[0].token_ids

    expected = [tokens_of(reference, "one")[0], chatted(reference), tokens_of(reference, "two")[0]]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            streamed = pool.submit(lambda: joined(list(llm.stream("one", GREEDY))))
            talked, generated = pool.submit(chatted, llm), pool.submit(lambda: tokens_of(llm, "two")[0])
            assert [one.result(LIMIT_S) for one in (streamed, talked, generated)] == expected
    assert_nothing_is_open(llm)


def test_a_full_queue_makes_threads_wait_for_each_other(reference: LLM) -> None:
    batches = [[f"{k}{i}" for i in range(5)] for k in range(4)]
    expected = [tokens_of(reference, batch) for batch in batches]
    with tiny_llm(max_queue=1, max_num_seqs=1) as llm, ThreadPoolExecutor(len(batches)) as pool:
        futures = [pool.submit(tokens_of, llm, batch) for batch in batches]
        assert [future.result(LIMIT_S) for future in futures] == expected
        assert_nothing_is_open(llm)


def test_a_thread_that_comes_later_is_not_kept_waiting_until_all_is_done(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def late() -> None:
        llm.generate("late", SamplingParams(max_tokens=2, ignore_eos=True))
        ended.append("late")

    thread = threading.Thread(target=late)

    def come() -> None:
        thread.start()
        while not llm._shared._turns._waiting:
            pass

    before_step(llm, monkeypatch, come)
    llm.generate("early", SamplingParams(max_tokens=300, ignore_eos=True))
    ended.append("early")
    thread.join(LIMIT_S)
    assert ended == ["late", "early"]


def test_closing_tells_whoever_waits(llm: LLM) -> None:
    stream = llm.stream("one", GREEDY)
    next(stream)
    llm.close()
    with pytest.raises(InvalidParameterError, match="closed"):
        list(stream)
    with pytest.raises(InvalidParameterError, match="closed"):
        llm.generate("one", GREEDY)
    llm.close()


# -- queues, refusals, interruptions -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_answers", [3, 8])
def test_more_answers_than_the_engine_can_ever_hold_are_refused_at_once(num_answers: int) -> None:
    params = SamplingParams(n=num_answers, max_tokens=2)
    with tiny_llm(max_queue=1, max_num_seqs=1) as llm:
        for ask in (lambda: llm.generate(["a"], params), lambda: list(llm.stream("a", params))):
            with pytest.raises((CapacityError, InvalidParameterError)):
                ask()
        assert_nothing_is_open(llm)
        assert tokens_of(llm, "a")


def test_a_queue_that_never_takes_anything_ends_generate(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(message: object) -> None:
        raise CapacityError("the queue is full")

    monkeypatch.setattr(loop_of(llm), "submit", full)
    with pytest.raises(CapacityError):
        llm.generate(["a", "b"], GREEDY)
    with pytest.raises(CapacityError):
        next(llm.stream("a", GREEDY))


def test_a_prompt_that_is_refused_stops_all_of_the_call_before_it_runs(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError):
        llm.generate(["a", "b" * 600], GREEDY)
    assert loop_of(llm).stats()["prompt_tokens_total"] == 0


@pytest.mark.parametrize("where", ["forward", "sample"])
def test_after_an_interrupted_step_the_model_answers_as_before(
    llm: LLM, reference: LLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    executor = loop_of(llm)._executor

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    beside = llm.stream("beside", GREEDY)
    begun = [next(beside), next(beside)]
    with monkeypatch.context() as patch:
        patch.setattr(executor, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["one", "two"], GREEDY)

    assert tokens_of(llm, ["one", "two"]) == tokens_of(reference, ["one", "two"])
    assert joined([*begun, *beside]) == tokens_of(reference, "beside")[0]
    assert_nothing_is_open(llm)


def test_a_fault_while_a_step_is_read_ends_its_requests_and_nothing_else(
    llm: LLM, reference: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as patch:
        patch.setattr("trivium.engine.loop.read_entry", broken)
        outputs = llm.generate(["one", "two"], GREEDY)
    assert [(output.finished, "ValueError" in (output.error or "")) for output in outputs] == [(True, True)] * 2
    assert tokens_of(llm, "one") == tokens_of(reference, "one")
    assert_nothing_is_open(llm)


# -- seeds, names, progress ----------------------------------------------------------------------------------------


def test_seeds_follow_the_order_of_calls_and_not_of_steps() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    with tiny_llm() as one, tiny_llm(max_queue=1, max_num_seqs=1) as other:
        streams = [one.stream("a", params), one.stream("b", params)]
        second, first = (joined(list(stream)) for stream in reversed(streams))
        expected = [joined(list(other.stream(text, params))) for text in "ab"]
        assert [first, second] == expected
        assert tokens_of(one, ["c", "d", "e"], params) == tokens_of(other, ["c", "d", "e"], params)


def test_the_names_of_vllm_work(llm: LLM) -> None:
    [output] = llm.generate(prompts=["one"], sampling_params=SamplingParams(max_tokens=3, logprobs=1), use_tqdm=False)
    [answer] = output.outputs
    assert output.finished
    assert (output.prompt, output.num_cached_tokens) == ("one", 0)
    assert answer.cumulative_logprob == sum(entry.logprob for entry in answer.logprobs or [])
    assert (answer.finish_reason, answer.stop_reason) == ("length", None)
    assert llm.get_tokenizer().encode("one", add_special_tokens=True) == output.prompt_token_ids
    assert llm.get_default_sampling_params() == llm.default_sampling_params()


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


class Terminal:
    """Standard error that says whether it is a terminal and keeps what is written."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


@pytest.mark.parametrize(
    ("is_terminal", "fields", "is_drawn"),
    [(True, {}, True), (True, {"use_tqdm": False}, False), (False, {}, False), (False, {"use_tqdm": True}, False)],
)
def test_the_progress_bar_is_for_people_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, fields: dict[str, Any], is_drawn: bool
) -> None:
    terminal = Terminal(is_terminal=is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    llm.generate(["a", "b"], GREEDY, **fields)
    llm.chat(MESSAGES, GREEDY, **fields)
    assert ("2/2" in terminal.text) == is_drawn
    assert ("1/1" in terminal.text) == is_drawn


def test_smaller_priorities_are_answered_first() -> None:
    prompts = [[5 + idx, 9] for idx in range(4)]
    with tiny_llm(order="priority", max_num_seqs=1) as llm:
        loop = loop_of(llm)
        loop.report_ends()
        llm.generate(prompts, GREEDY, use_tqdm=False, priority=[3, -1, 2, 0])
        assert [ended.request_id for ended in loop.take_ended()] == ["llm-1", "llm-3", "llm-2", "llm-0"]
        llm.generate(prompts[:2], GREEDY, use_tqdm=False, priority=7)
        assert [ended.request_id for ended in loop.take_ended()] == ["llm-4", "llm-5"]
        assert list(llm.stream(prompts[0], GREEDY, priority=-5))


def test_a_priority_is_refused_by_name_where_nobody_heeds_it(llm: LLM) -> None:
    with pytest.raises(UnsupportedFeatureError, match="does not order by priority") as refused:
        llm.generate([[5], [6]], GREEDY, use_tqdm=False, priority=[0, 1])
    assert refused.value.param == "priority"
    with pytest.raises(UnsupportedFeatureError, match="does not order by priority"):
        list(llm.stream([5], GREEDY, priority=1))
    assert_nothing_is_open(llm)


@pytest.mark.parametrize(
    ("priority", "told"),
    [
        ([1], "2 prompts and 1 priorities"),
        (1.0, r"priority is 1\.0 \(float\)"),
        ([0, True], r"priority\[1\] is True"),
        (1 << 31, "a whole number from -2147483647 to 2147483647"),
    ],
)
def test_what_is_no_priority_is_refused(llm: LLM, priority: Any, told: str) -> None:
    with pytest.raises(InvalidParameterError, match=told) as refused:
        llm.generate([[5], [6]], GREEDY, use_tqdm=False, priority=priority)
    assert refused.value.param == "priority"
