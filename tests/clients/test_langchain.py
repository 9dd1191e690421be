"""LangChain's `ChatOpenAI` and `OpenAI`: invoke, stream, batch, async, usage, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from support.spoken import MODEL, Spoken, chat_text

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("default::DeprecationWarning")]

Make = Callable[..., Any]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Make a model of LangChain's, over connections that are closed after the test; nothing is traced."""
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")
    import langchain_openai  # noqa: PLC0415  (in the oracle environment only)

    with httpx.Client(timeout=20) as client:
        async with httpx.AsyncClient(timeout=20) as async_client:

            def make(spoken: Spoken, kind: str = "ChatOpenAI", **fields: Any) -> Any:
                return getattr(langchain_openai, kind)(**{
                    "model": MODEL,
                    "temperature": 0,
                    "max_tokens": 12,
                    "base_url": spoken.base_url,
                    "api_key": spoken.key,
                    "max_retries": 0,
                    "http_client": client,
                    "http_async_client": async_client,
                    **fields,
                })

            yield make


def test_invoke_gets_text_and_usage(spoken: Spoken, make: Make) -> None:
    expected = spoken.chat()

    answer = make(spoken).invoke("hi")

    assert answer.content == chat_text(expected)
    assert answer.response_metadata["finish_reason"] == "length"
    assert answer.usage_metadata["input_tokens"] == expected["usage"]["prompt_tokens"]
    assert answer.usage_metadata["output_tokens"] == 12


def test_stream_brings_the_same_text_in_pieces_and_usage_when_asked(spoken: Spoken, make: Make) -> None:
    pieces = list(make(spoken, stream_usage=True).stream("hi"))

    assert "".join(piece.content for piece in pieces) == chat_text(spoken.chat())
    assert sum(bool(piece.content) for piece in pieces) > 3
    assert [piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata] == [12]
    assert not any(piece.usage_metadata for piece in make(spoken, stream_usage=False).stream("hi"))


def test_batch_answers_in_order(spoken: Spoken, make: Make) -> None:
    contents = [f"question {idx}" for idx in range(8)]

    answers = make(spoken).batch(contents)

    assert [answer.content for answer in answers] == [chat_text(spoken.chat(content)) for content in contents]


async def test_asynchronous_calls_get_the_same(spoken: Spoken, make: Make) -> None:
    expected = await asyncio.to_thread(lambda: chat_text(spoken.chat()))
    chat = make(spoken)

    assert (await chat.ainvoke("hi")).content == expected
    assert "".join([piece.content async for piece in chat.astream("hi")]) == expected
    assert [answer.content for answer in await chat.abatch(["hi"] * 4)] == [expected] * 4


def test_every_parameter_of_the_class_is_honoured(spoken: Spoken, make: Make) -> None:
    from langchain_core.prompt_values import StringPromptValue  # noqa: PLC0415

    fields = {
        "n": 2,
        "temperature": 0.9,
        "top_p": 0.8,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"7": 2},
        "stop": ["zz"],
        "logprobs": True,
        "top_logprobs": 2,
        "service_tier": "default",
    }
    expected = spoken.chat(**fields)

    chat = make(spoken, **fields, extra_body={"top_k": 20, "repetition_penalty": 1.0})
    result = chat.generate_prompt([StringPromptValue(text="hi")])

    texts = [generation.text for generation in result.generations[0]]
    plain = spoken.chat(**fields, top_k=20)
    assert texts == [choice["message"]["content"] for choice in plain["choices"]]
    assert len(texts) == 2
    assert expected["choices"][0]["logprobs"] is not None
    scores = result.generations[0][0].message.response_metadata["logprobs"]["content"]
    assert [entry["logprob"] for entry in scores] == [
        entry["logprob"] for entry in plain["choices"][0]["logprobs"]["content"]
    ]


def test_conversations_with_parts_and_a_prompt_template_chain_work(spoken: Spoken, make: Make) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage  # noqa: PLC0415
    from langchain_core.output_parsers import StrOutputParser  # noqa: PLC0415
    from langchain_core.prompts import ChatPromptTemplate  # noqa: PLC0415

    turns = [SystemMessage("s"), HumanMessage("h"), AIMessage("a"), HumanMessage([{"type": "text", "text": "x"}])]
    roles = [("system", "s"), ("user", "h"), ("assistant", "a"), ("user", "x")]
    messages = [{"role": role, "content": content} for role, content in roles]
    chain = ChatPromptTemplate.from_messages([("user", "{word}")]) | make(spoken) | StrOutputParser()

    assert make(spoken).invoke(turns).content == chat_text(
        spoken.post("chat/completions", messages=messages, temperature=0, max_tokens=12)
    )
    assert chain.invoke({"word": "hi"}) == chat_text(spoken.chat())


def test_the_completion_class_works_with_what_it_sends_by_default(spoken: Spoken, make: Make) -> None:
    completing = make(spoken, "OpenAI")
    expected = spoken.complete()["choices"][0]["text"]

    assert completing.invoke("hi") == expected
    assert "".join(completing.stream("hi")) == expected
    assert completing.batch(["hi", "ho"])[0] == expected


def test_what_cannot_be_honoured_is_refused_by_name(spoken: Spoken, make: Make) -> None:
    import openai  # noqa: PLC0415

    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError) as refusal:
        make(spoken).bind_tools([tool]).invoke("hi")
    assert (refusal.value.param, refusal.value.code) == ("tools", "unsupported_parameter")


def test_structured_output_is_what_the_schema_says(spoken: Spoken, make: Make) -> None:
    schema = {
        "title": "T",
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert make(spoken).with_structured_output(schema).invoke("hi")["a"] in {"x", "y"}


def test_errors_become_langchains_own(spoken: Spoken, make: Make) -> None:
    import openai  # noqa: PLC0415
    from langchain_core.exceptions import ContextOverflowError  # noqa: PLC0415

    with pytest.raises(ContextOverflowError):
        make(spoken).invoke("x" * 2000)
    with pytest.raises(ContextOverflowError):
        make(spoken, max_tokens=5000).invoke("hi")
    with pytest.raises(openai.NotFoundError):
        make(spoken, model="nope").invoke("hi")


def test_a_model_that_knows_answers(smollm2: Spoken, make: Make, question: Sequence[dict[str, Any]]) -> None:
    answer = make(smollm2, model="smollm2", max_tokens=24).invoke(list(question))
    assert "Paris" in answer.content
