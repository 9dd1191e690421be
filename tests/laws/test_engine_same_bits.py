"""The first promise, on a real model: a request's tokens and logprobs are the same bits whatever happens around it.

A state machine submits mixed requests (greedy and sampled, penalties, stops, several choices, prompt logprobs, shared
prefixes, constraints) to a small engine that must chunk, share, evict and preempt, and aborts some in the middle.
Whatever ends is compared with the same request run alone in an engine without a cache whose chunks hold whole prompts,
and which draws every token.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from support.tiny_engine import run_alone, tiny_loop
from trivium.api import Answers, RequestOutput
from trivium.base.errors import CapacityError
from trivium.config.chat_output import ChatOutput, Tool
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.kernels import native

SHARED = tuple(range(40, 75))
"""A prefix that ends inside a page for every page length but 1 and 5."""

CONSTRAINTS = (
    StructuredOutputs(regex="[a-d]{2,30}"),
    StructuredOutputs(json={"type": "array", "items": {"enum": [1, "x", None]}}),
    StructuredOutputs(choice=("ab", "abba")),
    StructuredOutputs(
        structural_tag={"structures": [{"begin": "b(", "schema": {"enum": [1, 23]}, "end": ")"}], "triggers": ["b"]}
    ),
    StructuredOutputs(regex="(the key|a [x-z]) is known, Q(a|b)!{12}"),
    StructuredOutputs(
        json={
            "type": "object",
            "properties": {"name of it": {"enum": ["a", "x1x1"]}, "and its Quality": {"type": "integer"}},
            "required": ["name of it", "and its Quality"],
            "additionalProperties": False,
        }
    ),
)
"""Some force many tokens, which the crowded engine takes without drawing them, and the other one draws."""

QUALITY = {"type": "object", "properties": {"of it": {"enum": ["is known", 1]}}, "required": ["of it"]}
CALLS = ChatOutput(tool_dialect="hermes", tools=(Tool(name="Q", parameters=QUALITY, strict=True), Tool(name="key")))
THINKS = ChatOutput(reasoning_dialect="qwen3", starts_in_reasoning=True, max_reasoning_tokens=3)
CHATS = (
    CALLS,
    THINKS,
    replace(CALLS, tool_choice="required", parallel_tool_calls=False),
    replace(CALLS, tool_choice="required", reasoning_dialect="qwen3", starts_in_reasoning=True, max_reasoning_tokens=4),
)


def without_contradictions(chosen: SamplingParams) -> SamplingParams:
    """Leave out what may not stand beside other fields."""
    wanted, chat = chosen.structured_outputs, chosen.chat_output
    if chosen.logprobs is chosen.prompt_logprobs is None:
        chosen = replace(chosen, logprobs_mode=None)
    is_tag = wanted is not None and wanted.kind == "structural_tag"
    return replace(chosen, chat_output=None) if is_tag and chat is not None and chat.limits_calls else chosen


params = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2]),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    seed=st.integers(0, 3),
    max_tokens=st.integers(1, 24),
    min_tokens=st.sampled_from([0, 1]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    min_p=st.sampled_from([0.0, 0.05]),
    typical_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    stop=st.sampled_from([(), ("a",), ("Q", "x1"), ("is k", " its ")]),
    stop_token_ids=st.sampled_from([(), (), (ord("k") + 3, ord("!") + 3)]),
    ignore_eos=st.booleans(),
    structured_outputs=st.sampled_from([None, None, *CONSTRAINTS]),
    chat_output=st.sampled_from([None, None, None, *CHATS]),
    logprobs=st.sampled_from([None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
).map(without_contradictions)
prompts = st.builds(
    lambda shared, own: (*SHARED[:shared], *own),
    st.integers(0, len(SHARED)),
    st.lists(st.integers(3, 258), min_size=1, max_size=30),
)


@cache
def _alone(executor: str, page_len: int) -> EngineLoop:
    """An engine for one request at a time; the bits of a law are those of one executor."""
    return tiny_loop(
        executor=executor,
        page_len=page_len,
        prefix_cache=False,
        max_num_batched_tokens=512,
        max_num_seqs=4,
        jump_forward=False,
    )


class CrowdedEngine(RuleBasedStateMachine):
    """Requests come, run, and go, in an engine that is always short of something."""

    open_requests = Bundle("open_requests")
    executor = "reference"
    page_len = 16
    lonely_page_len = 1
    chunk = 7
    memory = "32KiB"

    def __init__(self) -> None:
        super().__init__()
        self.loop = _engine(self.executor, self.page_len, self.chunk, self.memory)
        self.submitted: dict[str, tuple[tuple[int, ...], SamplingParams]] = {}
        self.answers: dict[str, Answers] = {}
        self.count = 0

    @rule(target=open_requests, prompt=prompts, chosen=params)
    def submit_any(self, prompt: tuple[int, ...], chosen: SamplingParams) -> object:
        return self.submit(prompt, chosen)

    def submit(self, prompt: tuple[int, ...], chosen: SamplingParams) -> object:
        name = f"r{self.count}"
        self.count += 1
        try:
            self.loop.submit(Submit(request_id=name, prompt_ids=list(prompt), params=chosen))
        except CapacityError:
            return multiple()
        self.submitted[name] = (prompt, chosen)
        self.answers[name] = Answers(name, list(prompt), list(prompt), chosen)
        return name

    @rule(target=open_requests, prompt=prompts)
    def submit_one_that_grows(self, prompt: tuple[int, ...]) -> object:
        room = self.loop.limits.max_model_len - len(prompt)
        return self.submit(prompt, SamplingParams(temperature=0.0, max_tokens=min(60, room), ignore_eos=True))

    @rule(steps=st.integers(1, 8))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            for news in self.loop.step():
                if news.request_id in self.answers:
                    self.answers[news.request_id].add(news)

    @rule(name=consumes(open_requests))
    def abort(self, name: str) -> None:
        self.loop.abort([name])
        if not self.answers[name].output.finished:
            del self.answers[name]

    @rule()
    def flush(self) -> None:
        self.loop.flush()

    @invariant()
    def every_page_has_its_owner(self) -> None:
        assert self.loop.check() == []

    def teardown(self) -> None:
        while self.loop.has_work:
            self.run(1)
        for name, answers in self.answers.items():
            self._compare(name, answers.output)
        assert self.loop.check() == []
        stats = self.loop.stats()
        assert stats["kv_pages_used"] == 0
        assert stats["num_running"] == stats["num_waiting"] == 0
        assert stats["step_errors_total"] == 0

    def _compare(self, name: str, output: RequestOutput) -> None:
        prompt, chosen = self.submitted[name]
        alone = run_alone(_alone(self.executor, self.lonely_page_len), prompt, chosen)
        assert output.error is None
        for ours, theirs in zip(output.outputs, alone.outputs, strict=True):
            assert ours.token_ids == theirs.token_ids, name
            assert (ours.text, ours.parts) == (theirs.text, theirs.parts)
            assert ours.logprobs == theirs.logprobs
            assert (ours.finish_reason, ours.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        assert output.prompt_logprobs == alone.prompt_logprobs


@cache
def _engine(executor: str, page_len: int, chunk: int, memory: str) -> EngineLoop:
    return tiny_loop(
        executor=executor,
        page_len=page_len,
        max_num_batched_tokens=chunk,
        max_num_seqs=6,
        kv_cache_memory=memory,
        max_queue=8,
    )


class OneTokenPages(CrowdedEngine):
    """Pages of one token, chunks of 64."""

    page_len = 1
    chunk = 64
    memory = "28KiB"


class NativeEngine(CrowdedEngine):
    """The compiled plan: the same crowd over native kernels."""

    executor = "native"
    lonely_page_len = 16


QUICK = settings(max_examples=12, stateful_step_count=16, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))

TestCrowdedEngine = CrowdedEngine.TestCase
TestCrowdedEngine.settings = QUICK
TestOneTokenPages = OneTokenPages.TestCase
TestOneTokenPages.settings = QUICK
if native.load() is not None:
    TestNativeEngine = NativeEngine.TestCase
    TestNativeEngine.settings = QUICK


@pytest.mark.soak
@pytest.mark.parametrize("machine", [CrowdedEngine, OneTokenPages, NativeEngine])
def test_hundreds_of_crowds_change_no_bit(machine: type[CrowdedEngine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
