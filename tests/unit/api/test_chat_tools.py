"""Tools and reasoning of `LLM.chat` and `AsyncLLM.chat`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.chat_templates import HERMES, REASONING_HERMES
from support.tiny_model import write_tiny_model
from trivium.api import LLM, AsyncLLM, CompletionOutput
from trivium.base.errors import InvalidParameterError, RequestError, UnsupportedFeatureError
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs

MESSAGES = [{"role": "user", "content": "hi"}]
ZONE = {"type": "object", "properties": {"zone": {"enum": ["日本"]}}, "required": ["zone"]}
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": ZONE, "strict": True}}]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "日本"}}\n</tool_call>'
CALLING = SamplingParams(temperature=0.0, max_tokens=200)
REQUIRED: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model = write_tiny_model(tmp_path_factory.mktemp("tools") / "tiny", max_positions=4096)
    with LLM(str(model), kv_cache_memory="4MiB", threads=1, seed=0, chat_template=HERMES) as own:
        yield own


def saying(text: str) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=200, structured_outputs=StructuredOutputs(choice=(text,)))


def only(llm: LLM, params: SamplingParams, **fields: Any) -> CompletionOutput:
    [output] = llm.chat(MESSAGES, params, use_tqdm=False, **{"tools": TOOLS, **fields})
    return output.outputs[0]


def test_outputs_have_the_calls_that_were_required(llm: LLM) -> None:
    output = only(llm, CALLING, **REQUIRED)
    assert output.finish_reason == "tool_calls"
    [call] = output.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_time", {"zone": "日本"})
    assert (output.content, output.reasoning) == ("", None)
    assert output.text.startswith("<tool_call>")


def test_an_answers_message_goes_on_with_the_conversation(llm: LLM) -> None:
    output = only(llm, CALLING, **REQUIRED)
    result = {"role": "tool", "tool_call_id": output.message["tool_calls"][0]["id"], "content": "noon"}
    [again] = llm.chat(
        [*MESSAGES, output.message, result], saying("noon"), use_tqdm=False, tools=TOOLS, tool_choice="none"
    )
    assert again.outputs[0].message == {"role": "assistant", "content": "noon"}
    assert '"arguments": {"zone": "日本"}' in (again.prompt or "")


def test_a_template_of_the_call_speaks_for_itself(llm: LLM) -> None:
    fields: dict[str, Any] = {"tools": None, "chat_template_kwargs": {"enable_thinking": True}}
    short = SamplingParams(temperature=0.0, max_tokens=8)
    output = only(llm, short, chat_template=REASONING_HERMES, **fields)
    assert (output.reasoning, output.content) == (output.text, "")
    assert output.message == {"role": "assistant", "content": "", "reasoning_content": output.text}
    plain = only(llm, short, **fields)
    assert (plain.reasoning, plain.content) == (None, output.text)


def test_generate_knows_only_text(llm: LLM) -> None:
    [output] = llm.generate("hi", saying(CALL), use_tqdm=False)
    assert output.outputs[0].tool_calls == []
    assert output.outputs[0].content == output.outputs[0].text == CALL
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "banana"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{}]}, "tools"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
        ({"chat_template": "{{ messages }}"}, "tools"),
    ],
)
def test_contradictions_are_refused_as_by_the_server(llm: LLM, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        only(llm, saying("a"), **fields)
    assert isinstance(caught.value, InvalidParameterError | UnsupportedFeatureError)
    assert caught.value.param == param


async def test_news_of_a_stream_have_parts(llm: LLM) -> None:
    options: dict[str, Any] = {"kv_cache_memory": "4MiB", "threads": 1, "chat_template": HERMES}
    async with AsyncLLM(llm.options.model.model, **options) as own:
        parts = [
            part async for news in own.chat(MESSAGES, CALLING, tools=TOOLS, **REQUIRED) for part in news.parts or ()
        ]
    assert [part.text for part in parts if part.kind == "tool_name"] == ["get_time"]
    assert "".join(part.text for part in parts if part.kind == "tool_arguments") == '{"zone": "日本"}'
