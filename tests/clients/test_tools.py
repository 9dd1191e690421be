"""Tools and reasoning through the `openai` client and LangChain; what is called is forced, as the model is random."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest

from support.chat_templates import HERMES
from support.server_process import ServerProcess
from support.spoken import MODEL, Spoken
from support.tiny_model import write_tiny_model

KEY = "a-key-of-the-tests"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "日本"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
FORCED: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [WEATHER],
    "tool_choice": "required",
    "max_tokens": 300,
}


def cities(calls: Any) -> list[str]:
    return [json.loads(call.function.arguments)["city"] for call in calls]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoken]:
    """The tiny model with room for tools, and a template that shows them."""
    model = write_tiny_model(tmp_path_factory.mktemp("caller") / "tiny", max_positions=4096)
    flags = ("--served-model-name", MODEL, "--kv-cache-memory", "4MiB", "--threads", "1", "--api-key", f"tests={KEY}")
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        ServerProcess(model, *flags, "--chat-template", HERMES) as running,
        httpx.Client(headers=headers, timeout=20) as plain,
    ):
        yield Spoken(running.url, KEY, plain)


@pytest.fixture
def client(caller: Spoken) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=caller.base_url, api_key=caller.key, max_retries=0, timeout=20) as own:
        yield own


@pytest.fixture
def seed(caller: Spoken) -> int:
    """A seed with which the model makes two calls and stops."""
    for seed in range(40):
        choice = caller.post("chat/completions", **{**FORCED, "seed": seed})["choices"][0]
        if choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) > 1:
            return seed
    pytest.fail("the model never makes two calls")


def test_calls_are_the_clients_own_objects(client: openai.OpenAI, seed: int) -> None:
    choice = client.chat.completions.create(**FORCED, seed=seed).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert set(cities(choice.message.tool_calls)) <= {"Oslo", "日本"}


def test_an_answer_with_its_results_goes_back(client: openai.OpenAI, seed: int) -> None:
    message = client.chat.completions.create(**FORCED, seed=seed).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls or ()]
    fields = {**FORCED, "max_tokens": 4, "tool_choice": "none"}
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        answer = client.chat.completions.create(**{**fields, "messages": [*FORCED["messages"], turn, *results]})
        assert answer.choices[0].message.tool_calls is None
        assert isinstance(answer.choices[0].message.content, str)


def test_the_clients_stream_puts_calls_together(client: openai.OpenAI, seed: int) -> None:
    whole = client.chat.completions.create(**FORCED, seed=seed).choices[0]
    with client.chat.completions.stream(**FORCED, seed=seed) as stream:
        seen = [event.type for event in stream]
        final: Any = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in seen
    assert seen.count("tool_calls.function.arguments.done") == len(whole.message.tool_calls or ())
    assert final.finish_reason == "tool_calls"
    assert cities(final.message.tool_calls) == cities(whole.message.tool_calls)
    assert len({call.id for call in final.message.tool_calls}) == len(final.message.tool_calls)


def test_asynchronous_calls_get_the_same(caller: Spoken, client: openai.OpenAI, seed: int) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=caller.base_url, api_key=caller.key, max_retries=0, timeout=20) as own:
            return await own.chat.completions.create(**FORCED, seed=seed)

    whole = client.chat.completions.create(**FORCED, seed=seed).choices[0]
    assert cities(asyncio.run(ask()).choices[0].message.tool_calls) == cities(whole.message.tool_calls)


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
def test_langchain_binds_tools_whole_and_streamed(
    caller: Spoken, client: openai.OpenAI, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    import langchain_openai  # noqa: PLC0415  (in the oracle environment only)
    from langchain_core.messages import HumanMessage, ToolMessage  # noqa: PLC0415

    expected = cities(client.chat.completions.create(**FORCED, seed=seed).choices[0].message.tool_calls)
    make: Any = langchain_openai.ChatOpenAI
    with httpx.Client(timeout=20) as http:
        chat = make(
            model=MODEL,
            base_url=caller.base_url,
            api_key=caller.key,
            max_tokens=300,
            seed=seed,
            max_retries=0,
            http_client=http,
        )
        bound = chat.bind_tools([WEATHER], tool_choice="required")
        answer = bound.invoke("hi")
        assert [(call["name"], call["args"]["city"]) for call in answer.tool_calls] == [
            ("get_weather", city) for city in expected
        ]
        assert answer.response_metadata["finish_reason"] == "tool_calls"
        pieces = list(bound.stream("hi"))
        joined = pieces[0]
        for piece in pieces[1:]:
            joined = joined + piece
        assert [call["args"]["city"] for call in joined.tool_calls] == expected
        history = [HumanMessage("hi"), answer, *(ToolMessage("rain", tool_call_id=c["id"]) for c in answer.tool_calls)]
        again = chat.bind_tools([WEATHER], tool_choice="none").invoke(history, max_tokens=4)
        assert not again.tool_calls


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_required_call_is_made_by_construction(client: openai.OpenAI, choice: Any) -> None:
    for seed in range(3):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            tools=[WEATHER],
            tool_choice=choice,
            parallel_tool_calls=False,
            seed=seed,
            max_tokens=200,
        )
        calls: Any = answer.choices[0].message.tool_calls
        assert [json.loads(call.function.arguments)["city"] in {"Oslo", "日本"} for call in calls] == [True]
        assert answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.extras
@pytest.mark.filterwarnings("default::DeprecationWarning")
async def test_instructor_and_pydantic_ai_get_models_through_tools(caller: Spoken) -> None:
    import instructor  # noqa: PLC0415  (in the oracle environment only)
    from pydantic import BaseModel, ConfigDict  # noqa: PLC0415
    from pydantic_ai import Agent, ToolOutput  # noqa: PLC0415
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    class Box(BaseModel):
        model_config = ConfigDict(extra="forbid")
        colour: Literal["red", "blue"]
        is_open: bool

    async with openai.AsyncOpenAI(base_url=caller.base_url, api_key=caller.key, max_retries=0, timeout=30) as own:
        made = instructor.from_openai(own, mode=instructor.Mode.TOOLS)
        box = await made.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "a box"}],
            response_model=Box,
            max_tokens=200,
            max_retries=0,
            seed=1,
        )
        assert isinstance(box, Box)
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=own))
        settings: Any = {"max_tokens": 200, "seed": 3, "parallel_tool_calls": False}
        agent = Agent(model, output_type=ToolOutput(Box, strict=True), model_settings=settings)
        assert isinstance((await agent.run("a box")).output, Box)
        async with agent.run_stream("a box") as stream:
            assert isinstance(await stream.get_output(), Box)
