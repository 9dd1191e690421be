"""Tools and reasoning through the `openai` client and LangChain; what is called is forced, as the model is random."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from support.chat_templates import REASONING_HERMES
from support.server_process import ServerProcess
from support.spoken import MODEL, Spoken
from support.tiny_model import write_tiny_model

KEY = "a-key-of-the-tests"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = (
    '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "日本"}}\n</tool_call>'
)
CITIES = [{"city": "Oslo"}, {"city": "日本"}]
FORCED: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 300,
    "extra_body": {"guided_choice": [CALLS]},
}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoken]:
    """The tiny model with room for tools, and a template that shows them."""
    model = write_tiny_model(tmp_path_factory.mktemp("caller") / "tiny", max_positions=4096)
    flags = ("--served-model-name", MODEL, "--kv-cache-memory", "4MiB", "--threads", "1", "--api-key", f"tests={KEY}")
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        ServerProcess(model, *flags, "--chat-template", REASONING_HERMES) as running,
        httpx.Client(headers=headers, timeout=20) as plain,
    ):
        yield Spoken(running.url, KEY, plain)


@pytest.fixture
def client(caller: Spoken) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=caller.base_url, api_key=caller.key, max_retries=0, timeout=20) as own:
        yield own


def test_calls_are_the_clients_own_objects(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**FORCED).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.reasoning_content == "hm"
    assert choice.message.tool_calls is not None
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == CITIES


def test_an_answer_with_its_results_goes_back(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(**FORCED).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls or ()]
    fields = {**FORCED, "extra_body": None, "max_tokens": 4, "tool_choice": "none"}
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        answer = client.chat.completions.create(**{**fields, "messages": [*FORCED["messages"], turn, *results]})
        assert answer.choices[0].message.tool_calls is None
        assert isinstance(answer.choices[0].message.content, str)


def test_the_clients_stream_puts_calls_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**FORCED) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in seen
    assert seen.count("tool_calls.function.arguments.done") == 2
    assert final.finish_reason == "tool_calls"
    calls = final.message.tool_calls
    assert calls is not None
    assert [json.loads(call.function.arguments) for call in calls] == CITIES
    assert len({call.id for call in calls}) == 2


def test_asynchronous_calls_get_the_same(caller: Spoken) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=caller.base_url, api_key=caller.key, max_retries=0, timeout=20) as own:
            return await own.chat.completions.create(**FORCED)

    calls = asyncio.run(ask()).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == CITIES


def test_contradictions_are_the_clients_own_errors(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "other"}}
    for fields in (
        {"tool_choice": named},
        {"tool_choice": "banana"},
        {"tools": openai.NOT_GIVEN, "tool_choice": named},
    ):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(**{**FORCED, **fields})
        assert refusal.value.param == "tool_choice"


@pytest.mark.extras
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_langchain_binds_tools_whole_and_streamed(caller: Spoken, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    import langchain_openai  # noqa: PLC0415  (in the oracle environment only)
    from langchain_core.messages import HumanMessage, ToolMessage  # noqa: PLC0415

    with httpx.Client(timeout=20) as http:
        chat = langchain_openai.ChatOpenAI(
            model=MODEL,
            base_url=caller.base_url,
            api_key=caller.key,
            temperature=0,
            max_retries=0,
            http_client=http,
            extra_body=FORCED["extra_body"],
        )
        bound = chat.bind_tools([WEATHER])
        answer = bound.invoke("hi")
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", c) for c in CITIES]
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        pieces = list(bound.stream("hi"))
        joined = pieces[0]
        for piece in pieces[1:]:
            joined = joined + piece
        assert [call["args"] for call in joined.tool_calls] == CITIES
        history = [HumanMessage("hi"), answer, *(ToolMessage("rain", tool_call_id=c["id"]) for c in answer.tool_calls)]
        again = chat.bind(extra_body=None).bind_tools([WEATHER], tool_choice="none").invoke(history, max_tokens=4)
        assert not again.tool_calls
