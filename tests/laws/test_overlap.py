"""The first promise where a device runs by itself: launching a step before the last one is read changes no token.

Requests with stop texts, stop tokens, priorities, shared prefixes and several choices come at random steps to an engine
that is short of seats, pages and rows, and some are aborted. The same stream goes to a loop whose executor computes
when it is called, and to one whose executor promises its draws and keeps them as late, or as early, as the contract
allows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.late_executor import LateExecutor, PromptExecutor, loop_over
from trivium.base.errors import RequestError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import ScheduleOptions
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

params = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    seed=st.just(1),
    n=st.sampled_from([1, 1, 2]),
    max_tokens=st.integers(0, 30),
    min_tokens=st.sampled_from([0, 0, 5]),
    stop=st.sampled_from([(), (), ("c",), ("ab", "k", "mn")]),
    stop_token_ids=st.sampled_from([(), (), (ord("d"), ord("e"))]),
    ignore_eos=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
prompts = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    st.integers(1, 30).map(lambda length: [0] * length),
    st.tuples(st.integers(1, 16), st.lists(st.integers(0, 3), min_size=1, max_size=6)).map(
        lambda parts: [7] * parts[0] + parts[1]
    ),
)


@dataclass(frozen=True)
class Visitor:
    """A request of the stream."""

    prompt: list[int]
    params: SamplingParams
    priority: int
    comes_at: int
    """Steps before it comes."""
    leaves_after: int | None
    """Steps after which it is aborted."""


visitors = st.builds(
    Visitor,
    prompt=prompts,
    params=params,
    priority=st.integers(-1, 1),
    comes_at=st.integers(0, 25),
    leaves_after=st.sampled_from([None, None, None, 0, 1, 2, 5, 9]),
)


@dataclass
class Told:
    """What a client heard."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    end: tuple[object, ...] | None = None


def serve(loop: EngineLoop, stream: list[Visitor]) -> dict[tuple[int, int], Told]:
    """Run a stream of requests to its end, checking every page after every step; news by request and choice."""
    told: dict[tuple[int, int], Told] = defaultdict(Told)
    last = max(visitor.comes_at + (visitor.leaves_after or 0) for visitor in stream)
    at = 0
    while at <= last or loop.has_work:
        for idx, visitor in enumerate(stream):
            if visitor.comes_at == at:
                message = Submit(
                    request_id=str(idx), prompt_ids=visitor.prompt, params=visitor.params, priority=visitor.priority
                )
                try:
                    loop.submit(message)
                except RequestError as error:
                    told[idx, 0].end = (str(error),)
            if visitor.leaves_after is not None and visitor.comes_at + visitor.leaves_after == at:
                loop.abort([str(idx)])
        for news in loop.step():
            one = told[int(news.request_id), news.choice]
            assert one.end is None, "an answer goes on after its end"
            assert news.first_token == len(one.tokens)
            one.tokens += news.token_ids
            one.text += news.text
            if news.finish_reason is not None:
                one.end = (news.finish_reason, news.stop_reason)
        assert loop.check() == []
        at += 1
    stats = loop.stats()
    assert (stats["kv_pages_used"], stats["num_running"], stats["num_waiting"]) == (0, 0, 0)
    assert stats["step_errors_total"] == 0
    return told


@settings(max_examples=150, deadline=None)
@given(
    windows=st.lists(st.sampled_from([None, None, 3, 7]), min_size=1, max_size=2),
    page_len=st.sampled_from([1, 4, 16]),
    pool_len=st.integers(40, 110),
    options=st.fixed_dictionaries({
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([3, 7, 32]),
        "order": st.sampled_from(["fcfs", "srf", "priority", "priority"]),
        "look_ahead": st.sampled_from([True, True, False]),
    }),
    engine=st.fixed_dictionaries({
        "prefix_cache": st.sampled_from([True, True, False]),
        "max_logit_rows": st.sampled_from([None, 1, 2]),
    }),
    is_ruthless=st.booleans(),
    is_lazy=st.booleans(),
    stream=st.lists(visitors, min_size=1, max_size=10),
)
def test_reading_a_step_while_the_next_one_runs_changes_no_token(
    windows: list[int | None],
    page_len: int,
    pool_len: int,
    options: dict[str, Any],
    engine: dict[str, Any],
    is_ruthless: bool,
    is_lazy: bool,
    stream: list[Visitor],
) -> None:
    is_ranked = options["order"] == "priority"
    if not is_ranked:
        stream = [Visitor(**{**vars(visitor), "priority": 0}) for visitor in stream]
    groups = [KVGroup("window" if window else "full", (idx,), 8, window) for idx, window in enumerate(windows)]
    spec, pages = KVSpec(tuple(groups), page_len), [pool_len // page_len + 1] * len(windows)
    chosen = ScheduleOptions(**options, preempt_for_priority=is_ranked and is_ruthless)
    prompt = serve(loop_over(PromptExecutor(spec, pages), chosen, **engine), stream)
    late = serve(loop_over(LateExecutor(spec, pages, is_lazy=is_lazy), chosen, **engine), stream)
    for (idx, choice), theirs in prompt.items():
        visitor, ours = stream[idx], late[idx, choice]
        if visitor.leaves_after is None:
            assert ours == theirs
            assert theirs.end is not None
        else:
            count = min(len(ours.tokens), len(theirs.tokens))
            assert ours.tokens[:count] == theirs.tokens[:count]
