"""LiteLLM: completion, text completion, streams, async, extension fields, and the errors that it tells apart."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from support.spoken import MODEL, Spoken, chat_text

pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("default")]

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def litellm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as library  # noqa: PLC0415  (in the oracle environment only)

    monkeypatch.setattr(library, "suppress_debug_info", True)
    yield library
    await library.close_litellm_async_clients()
    with warnings.catch_warnings():  # it never closes connections of synchronous calls
        warnings.simplefilter("ignore", ResourceWarning)
        library.in_memory_llm_clients_cache.flush_cache()
        gc.collect()


def fields(spoken: Spoken, model: str = f"openai/{MODEL}", **further: Any) -> dict[str, Any]:
    given = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 12, **further}
    return {"api_base": spoken.base_url, "api_key": spoken.key, "num_retries": 0, "timeout": 20, **given}


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_completion_gets_text_and_usage(litellm: Any, spoken: Spoken, provider: str) -> None:
    expected = spoken.chat()

    answer = litellm.completion(**fields(spoken, f"{provider}/{MODEL}"))

    assert answer.choices[0].message.content == chat_text(expected)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens_details.cached_tokens == expected["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_a_stream_brings_the_same_text_and_usage(litellm: Any, spoken: Spoken, provider: str) -> None:
    asked = fields(spoken, f"{provider}/{MODEL}", stream=True, stream_options={"include_usage": True})

    chunks = list(litellm.completion(**asked))

    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == chat_text(spoken.chat())
    usages = [usage for chunk in chunks if (usage := getattr(chunk, "usage", None))]
    assert [usage.completion_tokens for usage in usages] == [12]


async def test_asynchronous_calls_get_the_same(litellm: Any, spoken: Spoken) -> None:
    expected = await asyncio.to_thread(lambda: chat_text(spoken.chat()))

    answers = await asyncio.gather(*(litellm.acompletion(**fields(spoken)) for _ in range(4)))
    stream = await litellm.acompletion(**fields(spoken, stream=True))

    assert [answer.choices[0].message.content for answer in answers] == [expected] * 4
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == expected


def test_its_parameters_and_extension_fields_are_honoured(litellm: Any, spoken: Spoken) -> None:
    asked: dict[str, Any] = {
        "n": 2, "temperature": 0.9, "top_p": 0.8, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "stop": ["zz"], "logprobs": True, "top_logprobs": 1, "top_k": 20, "min_tokens": 3,
    }  # fmt: skip

    answer = litellm.completion(**fields(spoken, **asked, user="someone", metadata={"a": "b"}))

    expected = spoken.chat(**asked)
    assert [choice.message.content for choice in answer.choices] == [
        choice["message"]["content"] for choice in expected["choices"]
    ]
    assert len({choice.message.content for choice in answer.choices}) == 2


def test_text_completions_work_whole_and_streamed(litellm: Any, spoken: Spoken) -> None:
    asked = fields(spoken, f"text-completion-openai/{MODEL}")
    asked["prompt"] = asked.pop("messages")[0]["content"]
    expected = spoken.complete()["choices"][0]["text"]

    assert litellm.text_completion(**asked).choices[0].text == expected
    chunks = litellm.text_completion(**asked, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == expected


def test_errors_become_litellms_own(litellm: Any, spoken: Spoken) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    long = [{"role": "user", "content": "x" * 2000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**fields(spoken, messages=long))
    with pytest.raises(litellm.NotFoundError, match="nope"):
        litellm.completion(**fields(spoken, "openai/nope"))
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**fields(spoken), "api_key": "wrong"})
    unsupported = {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}}
    with pytest.raises(litellm.BadRequestError, match="response_format: json"):
        litellm.completion(**fields(spoken, response_format=unsupported))
    with pytest.raises(litellm.BadRequestError, match="tools is not supported"):
        litellm.completion(**fields(spoken, tools=[tool]))


def test_structured_output_is_what_the_schema_says(litellm: Any, spoken: Spoken) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["x", "y"]}}}
    answer = litellm.completion(**fields(spoken, response_format=wanted))
    assert answer.choices[0].message.content in {'"x"', '"y"'}


def test_a_model_that_knows_answers(litellm: Any, smollm2: Spoken, question: Sequence[dict[str, Any]]) -> None:
    answer = litellm.completion(**fields(smollm2, "openai/smollm2", messages=list(question), max_tokens=24))
    assert "Paris" in answer.choices[0].message.content
