"""What a request asks to be kept is kept, in an engine that is too small for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.tiny_engine import tiny_model
from trivium.api import LLM
from trivium.base.errors import UnsupportedFeatureError
from trivium.config.retention import RangeRetention, Retention
from trivium.config.sampling import SamplingParams

PAGE_LEN = 16


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(
        str(tiny_model()), kv_cache_memory="64KiB", page_len=PAGE_LEN, threads=1, seed=0, eviction="priority"
    ) as own:
        yield own


def prompt(first: int, length: int) -> list[int]:
    return [first, *(3 + (first * 7 + position * 5) % 60 for position in range(length - 1))]


def cached(llm: LLM, tokens: list[int], **fields: object) -> int:
    params = SamplingParams(temperature=0, max_tokens=1, **fields)  # type: ignore[arg-type]
    return llm.generate(tokens, params)[0].num_cached_tokens


@pytest.mark.parametrize(("priority", "is_kept"), [(90, True), (35, False), (0, False)])
def test_a_prompt_outlives_a_flood_of_others_exactly_when_its_priority_is_higher(
    llm: LLM, priority: int, is_kept: bool
) -> None:
    tokens_in_pool = int(str(llm.info["kv_tokens"]))
    length = tokens_in_pool // 8
    kept = prompt(5, length)
    assert cached(llm, kept, cache_retention=(RangeRetention(priority=priority),)) == 0
    for first in range(6, 24):
        cached(llm, prompt(first, length))
    assert (cached(llm, kept) > length - PAGE_LEN) == is_kept


def test_generated_tokens_are_kept_as_asked(llm: LLM) -> None:
    length = int(str(llm.info["kv_tokens"])) // 8
    params = SamplingParams(
        temperature=0, max_tokens=40, ignore_eos=True, cache_retention_decode=Retention(priority=90)
    )
    start = prompt(5, 8)
    answer = llm.generate(start, params)[0].outputs[0].token_ids
    for first in range(6, 24):
        cached(llm, prompt(first, length))
    assert cached(llm, [*start, *answer]) >= 32


def test_other_policies_refuse_it_by_name() -> None:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, eviction="lfu") as own:
        with pytest.raises(UnsupportedFeatureError, match="--eviction priority; this one evicts by 'lfu'") as refused:
            cached(own, [3, 4], cache_retention=(RangeRetention(priority=90),))
        assert refused.value.param == "cache_retention"
        assert cached(own, [3, 4], cache_retention=()) == 0
