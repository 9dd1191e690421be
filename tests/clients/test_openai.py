"""The official `openai` client over a real engine; tests/system has its faults and streams over a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from support.spoken import MODEL, Spoken, chat_text

MESSAGES: Any = [{"role": "user", "content": "hi"}]
GREEDY: Any = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}


class Colour(BaseModel):
    """A schema that `parse` would need."""

    name: str


@pytest.fixture
def client(spoken: Spoken) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=spoken.base_url, api_key=spoken.key, max_retries=0, timeout=20) as own:
        yield own


@pytest.fixture
async def async_client(spoken: Spoken) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=spoken.base_url, api_key=spoken.key, max_retries=0, timeout=20) as own:
        yield own


def test_whole_and_streamed_chats_are_what_plain_http_gets(spoken: Spoken, client: openai.OpenAI) -> None:
    expected = chat_text(spoken.chat())

    whole = client.chat.completions.create(**GREEDY)
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))

    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [12]
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12


async def test_thirty_two_asynchronous_chats_at_once_get_the_answer_that_one_gets(
    spoken: Spoken, async_client: openai.AsyncOpenAI
) -> None:
    contents = [f"question {idx}" for idx in range(32)]
    expected = await asyncio.to_thread(lambda: [chat_text(spoken.chat(content)) for content in contents])

    async def ask(idx: int) -> str:
        messages = [{"role": "user", "content": contents[idx]}]
        fields: Any = {**GREEDY, "messages": messages}
        if idx % 2:
            answer = await async_client.chat.completions.create(**fields)
            return str(answer.choices[0].message.content)
        stream = await async_client.chat.completions.create(**fields, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert await asyncio.gather(*(ask(idx) for idx in range(32))) == expected


def test_completions_take_texts_ids_and_extension_fields(spoken: Spoken, client: openai.OpenAI) -> None:
    expected = spoken.complete()["choices"][0]["text"]

    answer = client.completions.create(
        model=MODEL, prompt=["hi", "ho"], max_tokens=12, temperature=0, logprobs=1, echo=True
    )
    chosen = client.completions.create(
        model=MODEL, prompt=[35, 36], max_tokens=3, extra_body={"top_k": 1, "return_token_ids": True}
    )

    assert answer.choices[0].text == "hi" + expected
    assert answer.choices[1].text.startswith("ho")
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs is not None
    assert len(answer.choices[0].logprobs.token_logprobs) == 14
    assert len(chosen.choices[0].model_extra["token_ids"]) == 3  # type: ignore[index]


def test_logprobs_are_typed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3)

    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.content is not None
    assert len(scores.content) == 12
    assert all(entry.top_logprobs[0].logprob == entry.logprob <= 0 for entry in scores.content)


def test_parse_works_without_a_schema_and_tells_of_an_answer_that_was_cut(
    spoken: Spoken, client: openai.OpenAI
) -> None:
    stopped: Any = {**GREEDY, "stop": chat_text(spoken.chat())[2]}

    answer = client.chat.completions.parse(**stopped)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**GREEDY, "max_tokens": 2}, response_format=Colour)

    assert answer.choices[0].message.content == chat_text(spoken.chat())[:2]
    assert answer.choices[0].message.parsed is None


def test_tools_are_refused_by_name(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(**GREEDY, tools=[tool])
    assert (refusal.value.param, refusal.value.code) == ("tools", "unsupported_parameter")


def test_models_headers_and_error_types_are_the_clients(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    raw = client.chat.completions.with_raw_response.create(**GREEDY, extra_headers={"X-Request-Id": "mine"})
    assert raw.headers["x-request-id"] == "mine"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**GREEDY, "model": "nope"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**{**GREEDY, "messages": [{"role": "user", "content": "x" * 2000}]})
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(**GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="hi")
