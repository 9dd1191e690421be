"""`AsyncLLM` on the tiny model: the forms, refusals and answers of `LLM`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from support.tiny_engine import tiny_model
from trivium import LLM, AsyncLLM, Delta, SamplingParams, TokenLogprobs
from trivium.base.errors import InvalidParameterError, RequestError, UnsupportedFeatureError

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "hello"}]
OPTIONS: dict[str, Any] = {"kv_cache_memory": "1MiB", "threads": 1, "seed": 0}


@pytest.fixture
async def llm() -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(str(tiny_model()), **OPTIONS) as own:
        yield own


@pytest.fixture(scope="module")
def reference() -> Iterator[LLM]:
    with LLM(str(tiny_model()), **OPTIONS) as own:
        yield own


async def tokens_of(stream: AsyncIterator[Delta]) -> list[int]:
    return [token async for news in stream for token in news.token_ids]


async def test_streams_beside_each_other_are_those_of_llm(llm: AsyncLLM, reference: LLM) -> None:
    prompts: list[Any] = ["one", {"prompt": "two"}, [75, 72], {"prompt_token_ids": [79]}]
    expected = [output.outputs[0].token_ids for output in reference.generate(prompts, GREEDY)]
    assert await asyncio.gather(*(tokens_of(llm.generate(prompt, GREEDY)) for prompt in prompts)) == expected


async def test_chat_has_the_fields_of_llm(llm: AsyncLLM, reference: LLM) -> None:
    for fields in ({}, {"continue_final_message": True}, {"chat_template": "{{ messages[0].content }}"}):
        expected = reference.chat(MESSAGES, GREEDY, **fields)[0].outputs[0].token_ids
        assert await tokens_of(llm.chat(MESSAGES, GREEDY, **fields)) == expected


async def test_news_are_deltas_with_logprobs(llm: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=2, logprobs=1, ignore_eos=True)
    news = [one async for one in llm.generate("one", params)]
    assert all(isinstance(one, Delta) for one in news)
    assert [type(entry) for one in news for entry in one.logprobs or []] == [TokenLogprobs] * 2


@pytest.mark.parametrize("prompt", [["a", "b"], None, [1.5], {"promt": "a"}])
async def test_what_is_no_prompt_is_refused_at_once(llm: AsyncLLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(prompt, GREEDY)


async def test_what_is_no_conversation_is_refused_at_once(llm: AsyncLLM) -> None:
    for messages in ("hi", [], [{"role": "user"}], [MESSAGES]):
        with pytest.raises(InvalidParameterError, match="messages"):
            llm.chat(messages, GREEDY)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="tools"):
        llm.chat(MESSAGES, GREEDY, tools=[{"type": "function"}])
    with pytest.raises(InvalidParameterError, match="sampling_params"):
        llm.generate("a", {"temperature": 0})  # type: ignore[arg-type]


async def test_it_runs_between_start_and_close_only(llm: AsyncLLM) -> None:
    with pytest.raises(InvalidParameterError, match="runs already"):
        await llm.start()
    await llm.close()
    with pytest.raises(InvalidParameterError, match="not started"):
        llm.generate("one", GREEDY)
    await llm.close()


async def test_a_priority_is_refused_by_name_where_nobody_heeds_it(llm: AsyncLLM) -> None:
    with pytest.raises(UnsupportedFeatureError, match="does not order by priority"):
        await tokens_of(llm.generate([5], priority=1))
    with pytest.raises(InvalidParameterError, match="priority is 'high'"):
        llm.chat([{"role": "user", "content": "hello"}], priority="high")  # type: ignore[arg-type]
