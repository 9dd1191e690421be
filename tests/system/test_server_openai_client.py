"""The official `openai` client against the server: sync, async, streams, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from support.fake_engine import say
from support.live_server import LiveServer, LivingEngine, live_server

KEY = "client-key"
MESSAGES: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(LivingEngine(say("Hello, 世界!"), cached_len=5), api_key=(f"tests={KEY}",)) as server:
        yield server


@pytest.fixture
async def client(live: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, timeout=10) as own:
        yield own


async def test_chat_whole(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2, user="u", metadata={"k": "v"}
    )
    assert answer.choices[0].message.content == "Hello, 世界!"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert len(answer.choices[0].logprobs.content) == 15
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 5


async def test_chat_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    text, usages = "", []
    async for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if chunk.usage:
            usages.append(chunk.usage)
    assert text == "Hello, 世界!"
    assert [usage.completion_tokens for usage in usages] == [15]


async def test_the_clients_own_accumulator_of_streams_works(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model="tiny", messages=MESSAGES) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "Hello, 世界!"


async def test_parse_works_where_no_schema_is_needed(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello, 世界!"
    assert answer.choices[0].message.parsed is None


async def test_completions_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=["a", "b"], n=2, echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["aHello, 世界!"] * 2 + ["bHello, 世界!"] * 2
    stream = await client.completions.create(model="tiny", prompt="a", stream=True, extra_body={"top_k": 5})
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, 世界!"


async def test_the_synchronous_client_works(live: LiveServer) -> None:
    def talk() -> tuple[str, str, list[str]]:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, timeout=10) as client:
            whole = client.chat.completions.create(model="tiny", messages=MESSAGES)
            stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            names = [model.id for model in client.models.list()]
        return whole.choices[0].message.content or "", "".join(pieces), names

    assert await asyncio.to_thread(talk) == ("Hello, 世界!", "Hello, 世界!", ["tiny", "tiny-alias"])


async def test_errors_are_the_clients_own_types(live: LiveServer, client: openai.AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        await create(model="nope", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        await create(model="tiny", messages=[{"role": "user", "content": "x" * 1000}], stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="response_format"):
        await create(model="tiny", messages=MESSAGES, response_format={"type": "xml"})
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    live.engine.condition.is_ready = False
    with pytest.raises(openai.InternalServerError) as busy:
        await create(model="tiny", messages=MESSAGES)
    assert (busy.value.status_code, busy.value.code) == (503, "not_ready")


async def test_an_error_in_mid_stream_is_raised_to_the_reader(live: LiveServer, client: openai.AsyncOpenAI) -> None:
    live.engine.fail_after = 3
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    pieces: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")  # noqa: PERF401  (pieces before the error count)

    with pytest.raises(openai.APIError, match="the step failed"):
        await read()
    assert "".join(pieces) == "Hel"


async def test_closing_the_clients_stream_ends_the_request(live: LiveServer, client: openai.AsyncOpenAI) -> None:
    live.engine.hold_after = 2
    stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    await asyncio.wait_for(live.engine.held.wait(), 5)
    await stream.close()
    await asyncio.wait_for(live.engine.idle.wait(), 5)
    assert len(live.engine.aborted) == 1
