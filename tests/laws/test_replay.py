"""Whenever engines are lost, and whatever they had delivered, every answer is the one that an undisturbed engine gives.

No processes: an engine that is lost is a loop that nobody listens to any more, and the client's streams write its
requests for the next one. `tests/system/test_engine_replay.py` does it with processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_engine import run_alone, tiny_loop
from trivium.api import Answers, RequestOutput
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.engine.streams import StreamTable
from trivium.kernels import native

EXECUTORS = ["reference", *(["native"] if native.load() is not None else [])]
PLAIN = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
SEEDED = replace(PLAIN, temperature=1.2, seed=5)
KINDS: Sequence[SamplingParams] = (
    PLAIN,
    replace(SEEDED, n=3, logprobs=2),
    replace(SEEDED, n=2, best_of=3, stop=("e", "th"), min_tokens=6),
    replace(SEEDED, prompt_logprobs=1, logprobs=0, presence_penalty=0.5, repetition_penalty=1.3),
    replace(SEEDED, n=4, ignore_eos=False, stop_token_ids=tuple(range(0, 256, 9))),
    replace(PLAIN, max_tokens=0, prompt_logprobs=2),
)


@cache
def loops(executor: str) -> tuple[EngineLoop, EngineLoop]:
    """Two engines, used in turns, whose pools are too small for all requests at once."""
    options = {"executor": executor, "kv_cache_memory": "40KiB", "max_num_batched_tokens": 24, "max_num_seqs": 5}
    return tiny_loop(**options), tiny_loop(**options)


@cache
def expected(executor: str, prompt: tuple[int, ...], kind: int) -> RequestOutput:
    return run_alone(tiny_loop(executor=executor), prompt, KINDS[kind])


def prompts(kinds: Sequence[int]) -> list[tuple[int, ...]]:
    """Prompts of which some begin alike."""
    return [(*range(50, 53 + 9 * (idx % 4)), idx) for idx, _ in enumerate(kinds)]


async def answer_all(executor: str, kinds: Sequence[int], lives: Sequence[int]) -> list[RequestOutput]:
    """Answer requests by engines that are lost after so many steps each; the last one is not."""
    table, engines = StreamTable(), loops(executor)
    names = [f"r{idx}" for idx in range(len(kinds))]
    sent = [Submit(request_id=name, prompt_ids=list(prompt), params=KINDS[kind])
            for name, prompt, kind in zip(names, prompts(kinds), kinds, strict=True)]  # fmt: skip
    answers = [Answers(each.request_id, None, each.prompt_ids, each.params) for each in sent]

    async def abort(request_id: str) -> None:
        raise AssertionError(f"{request_id} is aborted")

    async def read(idx: int) -> None:
        async for news in table.run(sent[idx], lambda: None, abort):
            answers[idx].add(news)

    async with asyncio.timeout(60):
        reading = [asyncio.create_task(read(idx)) for idx in range(len(kinds))]
        await asyncio.sleep(0)
        for number, life in enumerate([*lives, 1 << 30]):
            engine = engines[number % 2]
            for name in table.open_ids():
                engine.submit(table.again(name, now_s=0.0))
            for _ in range(life):
                if not engine.has_work:
                    break
                table.feed_all(engine.step())
            engine.abort(engine.open_requests)
            engine.step()
            engine.flush()
            assert engine.check() == []
        await asyncio.gather(*reading)
    return [each.output for each in answers]


@pytest.mark.parametrize("executor", EXECUTORS)
@given(
    kinds=st.lists(st.integers(0, len(KINDS) - 1), min_size=1, max_size=5),
    lives=st.lists(st.integers(0, 25), max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_answers_do_not_depend_on_when_engines_are_lost(executor: str, kinds: list[int], lives: list[int]) -> None:
    outputs = asyncio.run(answer_all(executor, kinds, lives))
    for prompt, kind, output in zip(prompts(kinds), kinds, outputs, strict=True):
        alone = expected(executor, prompt, kind)
        assert output.error is None
        assert output.outputs == alone.outputs
        assert output.prompt_logprobs == alone.prompt_logprobs
