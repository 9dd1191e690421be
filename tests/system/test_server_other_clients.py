"""LangChain, LiteLLM and curl against the server; each is skipped where it is not installed."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.fake_engine import say
from support.live_server import LiveServer, LivingEngine, live_server

KEY = "client-key"
TEXT = "Hello, world!"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    async with live_server(LivingEngine(say(TEXT), cached_len=2), api_key=(f"tests={KEY}",)) as server:
        yield server


async def test_langchain_chats_streams_and_counts(live: LiveServer) -> None:
    library = pytest.importorskip("langchain_openai", reason="LangChain is not installed")
    chat = library.ChatOpenAI(
        model="tiny", base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, temperature=0, max_tokens=30, seed=1
    )

    def talk() -> None:
        assert chat.invoke("hi").content == TEXT
        assert "".join(chunk.content for chunk in chat.stream("hi")) == TEXT
        counted = [chunk.usage_metadata for chunk in chat.stream("hi", stream_usage=True) if chunk.usage_metadata]
        assert [usage["output_tokens"] for usage in counted] == [14]
        scored = chat.bind(logprobs=True, top_logprobs=2).invoke("hi")
        assert len(scored.response_metadata["logprobs"]["content"]) == 14
        many = chat.bind(n=2, stop=["zzz"], top_p=0.9, user="u", extra_body={"top_k": 3})
        assert many.invoke([("system", "s"), ("human", "h"), ("ai", "x"), ("human", "y")]).content == TEXT

    await asyncio.to_thread(talk)
    assert (await chat.ainvoke("hi")).content == TEXT
    completing = library.OpenAI(model="tiny", base_url=f"{live.url}/v1", api_key=KEY, max_tokens=5, max_retries=0)
    assert await asyncio.to_thread(completing.invoke, "hi") == "Hello"


async def test_litellm_chats_streams_and_knows_the_error(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    library = pytest.importorskip("litellm", reason="LiteLLM is not installed")
    fields: dict[str, Any] = {"api_base": f"{live.url}/v1", "api_key": KEY, "num_retries": 0}
    messages = [{"role": "user", "content": "hi"}]

    def talk() -> None:
        for model in ("openai/tiny", "hosted_vllm/tiny"):
            answer = library.completion(model=model, messages=messages, **fields)
            assert answer.choices[0].message.content == TEXT
            assert answer.usage.prompt_tokens_details.cached_tokens == 2
        stream = library.completion(model="openai/tiny", messages=messages, stream=True, **fields)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == TEXT
        whole = library.text_completion(model="text-completion-openai/tiny", prompt="hi", max_tokens=5, **fields)
        assert whole.choices[0].text == "Hello"
        with pytest.raises(library.ContextWindowExceededError):
            library.completion(model="openai/tiny", messages=[{"role": "user", "content": "x" * 2000}], **fields)

    await asyncio.to_thread(talk)


async def test_curl_gets_whole_answers_and_streams(live: LiveServer) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    messages = [{"role": "user", "content": "hi"}]

    async def ask(**fields: Any) -> str:
        body = json.dumps({"model": "tiny", "messages": messages, **fields})
        headers = ["-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {KEY}"]
        asked = await asyncio.create_subprocess_exec(
            curl, "-sN", f"{live.url}/v1/chat/completions", *headers, "-d", body, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(asked.communicate(), 10)
        assert asked.returncode == 0
        return output.decode()

    assert json.loads(await ask())["choices"][0]["message"]["content"] == TEXT
    assert (await ask(stream=True)).rstrip().endswith("data: [DONE]")
