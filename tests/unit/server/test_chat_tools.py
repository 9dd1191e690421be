"""Tools and reasoning of `/v1/chat/completions`: fields, what the template gets, shapes (cases C01 to C03)."""

from __future__ import annotations

from typing import Any

import pytest

from support.fake_engine import BOS_ID, FakeEngine, JoiningTemplate, say
from support.server_site import MakeSite, Site
from support.sse import chunks
from trivium.config.chat_output import ChatOutput
from trivium.grammar.detect import ModelDialects

QWEN = ModelDialects(tools="hermes", reasoning="qwen3")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def open_tools(make_site: MakeSite, text: str = "Hi", **options: Any) -> Site:
    known = ("tools", "documents", "enable_thinking")
    template = options.pop("template", JoiningTemplate(uses=known))
    return make_site(FakeEngine(say(text)), template=template, dialects=options.pop("dialects", QWEN), **options)


def output_of(site: Site) -> ChatOutput:
    found = site.engine.submitted[-1].params.chat_output
    assert found is not None
    return found


async def message_of(site: Site, **fields: Any) -> tuple[dict[str, Any], str]:
    response = await site.chat(**{"tools": [WEATHER, CLOCK], **fields})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"], choice["finish_reason"]


async def deltas_of(site: Site, **fields: Any) -> list[dict[str, Any]]:
    response = await site.chat(stream=True, **{"tools": [WEATHER, CLOCK], **fields})
    assert response.status_code == 200, response.text
    return [choice for chunk in chunks(response.text) for choice in chunk["choices"]]


async def test_calls_have_openais_shape(make_site: MakeSite) -> None:
    message, reason = await message_of(open_tools(make_site, CALLS))
    assert reason == "tool_calls"
    assert message["content"] is None
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert second["function"] == {"name": "get_time", "arguments": "{}"}
    assert first["type"] == "function"
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]


async def test_a_stream_tells_index_id_and_name_of_each_call_once(make_site: MakeSite) -> None:
    choices = await deltas_of(open_tools(make_site, CALLS))
    told = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    for index, (name, arguments) in enumerate([("get_weather", '{"city": "Oslo"}'), ("get_time", "{}")]):
        own = [call for call in told if call["index"] == index]
        assert [call["function"]["name"] for call in own if "name" in call["function"]] == [name]
        assert len({call["id"] for call in own if "id" in call}) == sum("id" in call for call in own) == 1
        assert own[0]["type"] == "function"
        assert "".join(call["function"]["arguments"] for call in own) == arguments
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not any(choice["delta"].get("content") for choice in choices)


async def test_a_plain_answer_has_no_key_of_calls(make_site: MakeSite) -> None:
    site = open_tools(make_site, "Hi")
    message, reason = await message_of(site)
    assert message == {"role": "assistant", "content": "Hi", "refusal": None}
    assert reason == "stop"
    assert not any("tool_calls" in choice["delta"] for choice in await deltas_of(site))


async def test_without_a_choice_of_calls_none_are_read(make_site: MakeSite) -> None:
    site = open_tools(make_site, CALLS)
    message, reason = await message_of(site, tool_choice="none")
    assert message["content"] == CALLS
    assert "tool_calls" not in message
    assert reason == "stop"
    assert output_of(site).tool_choice == "none"


async def test_calls_that_are_cut_short_end_by_length(make_site: MakeSite) -> None:
    site = open_tools(make_site, CALLS)
    message, reason = await message_of(site, max_tokens=70)
    assert reason == "length"
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    choices = await deltas_of(site, max_tokens=70)
    assert choices[-1]["finish_reason"] == "length"


async def test_reasoning_is_apart_and_counted(make_site: MakeSite) -> None:
    site = open_tools(make_site, "<think>\nhm\n</think>\n\nHi")
    response = (await site.chat()).json()
    assert response["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "reasoning_content": "hm",
    }
    assert 0 < response["usage"]["completion_tokens_details"]["reasoning_tokens"] < 21
    choices = await deltas_of(site, tools=None)
    joined = {
        key: "".join(choice["delta"].get(key) or "" for choice in choices) for key in ("reasoning_content", "content")
    }
    assert joined == {"reasoning_content": "hm", "content": "Hi"}


async def test_reasoning_can_be_left_out_or_left_in(make_site: MakeSite) -> None:
    site = open_tools(make_site, "<think>\nhm\n</think>\n\nHi")
    message, _ = await message_of(site, include_reasoning=False)
    assert (message["content"], "reasoning_content" in message) == ("Hi", False)
    assert not any("reasoning_content" in c["delta"] for c in await deltas_of(site, include_reasoning=False))
    message, _ = await message_of(site, separate_reasoning=False)
    assert message["content"] == "<think>\nhm\n</think>\n\nHi"


@pytest.mark.parametrize(("opening", "is_inside"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False)])
async def test_a_prompt_that_opened_the_reasoning_is_heeded(make_site: MakeSite, opening: str, is_inside: bool) -> None:
    site = open_tools(make_site, "hm\n</think>\n\nHi", template=JoiningTemplate(uses=["tools"], opening=opening))
    message, _ = await message_of(site)
    assert output_of(site).starts_in_reasoning == is_inside
    if is_inside:
        assert (message["reasoning_content"], message["content"]) == ("hm", "Hi")


@pytest.mark.parametrize("opening", ["</think>", "<think>\n\n</think>\n\n"])
async def test_a_prompt_that_closed_the_reasoning_of_a_model_that_always_reasons_is_heeded(
    make_site: MakeSite, opening: str
) -> None:
    always = ModelDialects(reasoning="deepseek_r1")
    site = open_tools(make_site, "Hi", template=JoiningTemplate(opening=opening), dialects=always)
    message, _ = await message_of(site, tools=None, max_reasoning_tokens=5)
    assert message == {"role": "assistant", "content": "Hi", "refusal": None}
    site = open_tools(make_site, "hm</think>Hi", template=JoiningTemplate(), dialects=always)
    message, _ = await message_of(site, tools=None)
    assert (message["reasoning_content"], message["content"]) == ("hm", "Hi")


async def test_logprobs_are_those_of_every_token(make_site: MakeSite) -> None:
    text = "<think>a</think>b" + CALLS
    site = open_tools(make_site, text)
    whole = (await site.chat(tools=[WEATHER, CLOCK], logprobs=True, return_token_ids=True)).json()["choices"][0]
    assert len(whole["logprobs"]["content"]) == len(text) + 1 == len(whole["token_ids"])
    choices = await deltas_of(site, logprobs=True, return_token_ids=True)
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
    assert entries == whole["logprobs"]["content"]
    assert [id_ for choice in choices for id_ in choice.get("token_ids", ())] == whole["token_ids"]


async def test_the_template_gets_tools_and_documents(make_site: MakeSite) -> None:
    site = open_tools(make_site)
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    documents = [{"title": "a", "text": "b"}]
    assert (await site.chat(tools=[strict], documents=documents)).status_code == 200
    assert site.template.variables["tools"] == [WEATHER]
    assert site.template.variables["documents"] == documents
    assert output_of(site).tools[0].strict
    await site.chat()
    assert site.template.variables["tools"] is None


async def test_a_template_that_never_shows_tools_is_told_of_them_where_a_dialect_was_named(make_site: MakeSite) -> None:
    hermes = ModelDialects(tools="hermes")
    site = open_tools(make_site, CALLS, template=JoiningTemplate(), dialects=hermes, served={"max_model_len": 4096})
    message, reason = await message_of(site)
    assert (reason, len(message["tool_calls"])) == ("tool_calls", 2)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in message["tool_calls"]]
    system, user = {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}
    await message_of(site, messages=[system, user, message, *results])
    told, asked, called, answered = site.template.seen
    assert told["content"].startswith("be kind\n\n")
    assert '{"name": "get_weather", "description": "Tells the weather.", "parameters"' in told["content"]
    assert asked == user
    assert called == {"role": "assistant", "content": CALLS}
    assert answered["role"] == "user"
    assert [call["id"] in answered["content"] for call in message["tool_calls"]] == [True, True]
    assert site.template.variables["tools"] is None


NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.parametrize(
    ("choice", "mode", "allowed"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("required", "required", None),
        (NAMED, "required", ("get_time",)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            "auto",
            ("get_time",),
        ),
    ],
)
async def test_the_choice_of_calls_reaches_the_engine(
    make_site: MakeSite, choice: Any, mode: str, allowed: tuple[str, ...] | None
) -> None:
    site = open_tools(make_site)
    await site.chat(tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False)
    output = output_of(site)
    assert (output.tool_choice, output.allowed_tools, output.parallel_tool_calls) == (mode, allowed, False)
    assert (output.tool_dialect, output.reasoning_dialect) == ("hermes", "qwen3")


async def test_a_named_function_is_called_once(make_site: MakeSite) -> None:
    site = open_tools(make_site)
    await site.chat(tools=[WEATHER, CLOCK], tool_choice=NAMED)
    assert not output_of(site).parallel_tool_calls
    await site.chat(tools=[WEATHER, CLOCK], tool_choice="required")
    assert output_of(site).parallel_tool_calls


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": {}}, "tool_choice"),
    ({"tool_choice": "banana"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": "get_time"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ({"tools": None, "tool_choice": NAMED}, "tool_choice"),
    ({"tools": "get_time"}, "tools"),
    ({"tools": [WEATHER, WEATHER]}, "tools"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"functions": [{"name": "get_time"}]}, "functions"),
    ({"function_call": {"name": "get_time"}}, "function_call"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "reasoning_effort"),
    ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
    ({"max_reasoning_tokens": 1, "thinking_token_budget": 2}, "thinking_token_budget"),
    ({"thinking_token_budget": 2, "separate_reasoning": False}, "thinking_token_budget"),
    ({"stream_reasoning": False}, "stream_reasoning"),
    ({"documents": "text"}, "documents"),
    ({"documents": [{}]}, "documents"),
    ({"documents": [{"text": 5}]}, "documents"),
    ({"documents": [{"text": "a"}], "chat_template_kwargs": {"documents": []}}, "documents"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_contradictions_are_refused_by_name(
    make_site: MakeSite, fields: dict[str, Any], param: str, is_stream: bool
) -> None:
    site = open_tools(make_site)
    response = await site.chat(stream=is_stream, **{"tools": [WEATHER, CLOCK], **fields})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert site.engine.submitted == []


@pytest.mark.parametrize(
    ("template", "dialects", "fields", "told"),
    [
        (JoiningTemplate(), ModelDialects(), {"tools": [WEATHER]}, "--chat-template"),
        (JoiningTemplate(), ModelDialects(tools="mistral"), {"tools": [WEATHER]}, "--tool-call-parser hermes"),
        (JoiningTemplate(uses=["tools"]), ModelDialects(), {"tools": [WEATHER]}, "--tool-call-parser"),
        (JoiningTemplate(), QWEN, {"documents": [{"text": "a"}]}, "--chat-template"),
        (JoiningTemplate(), ModelDialects(), {"reasoning_effort": "high"}, "--reasoning-parser"),
        (JoiningTemplate(), ModelDialects(), {"max_reasoning_tokens": 5}, "--reasoning-parser"),
        (JoiningTemplate(), ModelDialects(), {"thinking_token_budget": 5}, "--reasoning-parser"),
    ],
)
async def test_what_the_model_cannot_be_told_is_refused_with_a_way_out(
    make_site: MakeSite, template: JoiningTemplate, dialects: ModelDialects, fields: dict[str, Any], told: str
) -> None:
    site = open_tools(make_site, template=template, dialects=dialects)
    response = await site.chat(**fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == next(iter(fields))
    assert error["code"] == "unsupported_parameter"
    assert told in error["message"]


@pytest.mark.parametrize(
    ("known", "effort", "variables", "budget"),
    [
        (["reasoning_effort"], "low", {"reasoning_effort": "low"}, None),
        (["enable_thinking"], "none", {"enable_thinking": False}, None),
        (["enable_thinking"], "low", {"enable_thinking": True}, 1024),
        (["thinking"], "high", {"thinking": True}, None),
        ([], "none", {}, 0),
        ([], "medium", {}, 8192),
    ],
)
async def test_effort_is_told_to_the_template_or_becomes_a_budget(
    make_site: MakeSite, known: list[str], effort: str, variables: dict[str, Any], budget: int | None
) -> None:
    site = open_tools(make_site, template=JoiningTemplate(uses=known))
    assert (await site.chat(reasoning_effort=effort)).status_code == 200
    assert {name: site.template.variables.get(name) for name in variables} == variables
    assert output_of(site).max_reasoning_tokens == budget
    await site.chat(reasoning_effort=effort, thinking_token_budget=7)
    assert output_of(site).max_reasoning_tokens == 7


async def test_effort_none_asks_nothing_of_a_model_that_does_not_reason(make_site: MakeSite) -> None:
    site = open_tools(make_site, template=JoiningTemplate(), dialects=ModelDialects())
    assert (await site.chat(reasoning_effort="none")).status_code == 200
    assert site.engine.submitted[-1].params.chat_output is None


async def test_ids_of_calls_have_the_form_that_the_dialect_takes_back(make_site: MakeSite) -> None:
    said = '[TOOL_CALLS]get_time{"a": 1}'
    site = open_tools(make_site, said, dialects=ModelDialects(tools="mistral"))
    message, _ = await message_of(site)
    assert [len(call["id"]) for call in message["tool_calls"]] == [9]
    said = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    site = open_tools(make_site, said, dialects=ModelDialects(tools="kimi_k2"))
    earlier = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "functions.get_time:0", "function": {"name": "get_time"}}]},
        {"role": "tool", "tool_call_id": "functions.get_time:0", "content": "5"},
    ]
    message, _ = await message_of(site, messages=earlier)
    assert [call["id"] for call in message["tool_calls"]] == ["functions.get_time:1"]


async def test_an_answer_with_calls_can_be_sent_back(make_site: MakeSite) -> None:
    site = open_tools(make_site, "<think>a</think>b" + CALLS)
    message, _ = await message_of(site)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][1]["id"], "content": "noon"}
    messages = [{"role": "user", "content": "a"}, message, result]
    assert (await site.chat(messages=messages, tools=[WEATHER, CLOCK])).status_code == 200
    turn, answered = site.template.seen[1:]
    assert turn["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert turn["reasoning_content"] == "a"
    assert answered["name"] == "get_time"


async def test_tokenize_counts_tools_as_chat_does(make_site: MakeSite) -> None:
    class Listing(JoiningTemplate):
        def render(self, messages: Any, **variables: Any) -> str:
            return str(variables["tools"]) + super().render(messages, **variables)

    site = open_tools(make_site, template=Listing(uses=["tools"]))
    messages = [{"role": "user", "content": "hi"}]
    counted = (await site.post("/tokenize", messages=messages, tools=[WEATHER])).json()
    used = (await site.chat(messages=messages, tools=[WEATHER])).json()["usage"]["prompt_tokens"]
    plain = (await site.chat(messages=messages)).json()["usage"]["prompt_tokens"]
    assert counted["count"] == used > plain
    assert counted["tokens"][0] != BOS_ID
