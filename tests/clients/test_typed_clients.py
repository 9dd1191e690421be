"""Clients that turn answers into Pydantic models: instructor and pydantic-ai, by JSON Schema."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from support.spoken import MODEL, Spoken

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("default::DeprecationWarning")]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Closed(BaseModel):
    """Takes no other fields; a model that says anything would never stop to make some up."""

    model_config = ConfigDict(extra="forbid")


class Lid(Closed):
    is_open: bool


class Box(Closed):
    """A model whose schema has references, an enum, bounds and something optional."""

    colour: Colour
    sides: list[Literal[1, 2, 3]] = Field(min_length=1, max_length=4)
    lid: Lid | None


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[Spoken], Any]]:
    """Make `openai` clients, which are closed after the test."""
    import openai  # noqa: PLC0415  (in the oracle environment only)

    async with AsyncExitStack() as opened:

        def connect(spoken: Spoken) -> Any:
            client = openai.AsyncOpenAI(base_url=spoken.base_url, api_key=spoken.key, max_retries=0, timeout=30)
            opened.push_async_callback(client.close)
            return client

        yield connect


async def test_instructor_gets_models(spoken: Spoken, connect: Callable[[Spoken], Any]) -> None:
    import instructor  # noqa: PLC0415  (in the oracle environment only)

    client = instructor.from_openai(connect(spoken), mode=instructor.Mode.JSON_SCHEMA)
    messages: list[Any] = [{"role": "user", "content": "a box"}]
    for seed in range(4):
        box = await client.chat.completions.create(
            model=MODEL, messages=messages, response_model=Box, max_tokens=120, seed=seed, max_retries=0
        )
        assert isinstance(box, Box)


async def test_pydantic_ai_gets_models_whole_and_streamed(spoken: Spoken, connect: Callable[[Spoken], Any]) -> None:
    from pydantic_ai import Agent, NativeOutput  # noqa: PLC0415  (in the oracle environment only)
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=connect(spoken)))
    agent = Agent(model, output_type=NativeOutput(Box, strict=True), model_settings={"max_tokens": 120, "seed": 3})
    whole = await agent.run("a box")
    assert isinstance(whole.output, Box)
    async with agent.run_stream("a box") as stream:
        assert await stream.get_output() == whole.output
