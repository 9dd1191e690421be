"""Tool calls and chat templates (cases C of docs/reliability.md); calls are required, as the model is random."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.case_checks import assert_fields_refused, strict_json
from support.chat_templates import CHOOSY, HERMES
from support.sse import chunks
from support.tiny_engine import tiny_model
from support.tiny_model import write_tiny_model
from support.tiny_server import TinyServer, tiny_server

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "日本"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
TOOLS: list[dict[str, Any]] = [WEATHER, CLOCK]
STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
CHOSEN = {"type": "function", "function": {"name": "get_weather"}}
NOTHING = {"type": "object", "additionalProperties": False}
RESULT = [
    {"role": "user", "content": "Hello, how are you?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
]  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """A server whose template shows tools, with room for them."""
    model = write_tiny_model(tmp_path_factory.mktemp("tools") / "tiny", max_positions=4096)
    with tiny_server("--chat-template", HERMES, model=model, kv_cache_memory="4MiB") as server:
        yield server


def asked(server: TinyServer, *, is_stream: bool, **fields: Any) -> tuple[dict[str, Any], str | None]:
    """Return the message and the finish reason, whole or put together from a stream as OpenAI's client does it."""
    response = server.chat(**{"tools": TOOLS, "max_tokens": 200, "stream": is_stream, **fields})
    assert response.status_code == 200, response.text
    if not is_stream:
        choice = strict_json(response.text)["choices"][0]
        return choice["message"], choice["finish_reason"]
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    reason = None
    for chunk in chunks(response.text):
        (choice,) = chunk["choices"]
        message["content"] += choice["delta"].get("content") or ""
        for news in choice["delta"].get("tool_calls", ()):
            if news["index"] not in calls:
                assert {"id", "type", "function"} <= set(news)
                calls[news["index"]] = {"id": news["id"], "type": news["type"], "function": {**news["function"]}}
            else:
                assert set(news) == {"index", "function"}
                assert set(news["function"]) == {"arguments"}
                calls[news["index"]]["function"]["arguments"] += news["function"]["arguments"]
        assert reason is None
        reason = choice["finish_reason"]
    if calls:
        assert list(calls) == list(range(len(calls)))
        message["tool_calls"] = list(calls.values())
    return message, reason


def named(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]


@pytest.mark.parametrize("is_stream", [False, True])
def test_c01_reason_and_calls_agree(server: TinyServer, is_stream: bool) -> None:
    for fields in ({"tool_choice": "none"}, {"tool_choice": "none", "messages": RESULT}, {"tools": None}):
        message, reason = asked(server, is_stream=is_stream, **fields)
        assert "tool_calls" not in message
        assert isinstance(message["content"], str)
        assert reason in {"stop", "length"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_c01_a_required_call_is_made_and_passes_its_schema(server: TinyServer, is_stream: bool) -> None:
    parameters = {tool["function"]["name"]: tool["function"].get("parameters", NOTHING) for tool in TOOLS}
    for seed in range(4):
        drawn = {"temperature": 1, "seed": seed, "parallel_tool_calls": False, "tools": STRICT}
        message, reason = asked(server, is_stream=is_stream, tool_choice="required", **drawn)
        [(name, arguments)] = named(message)
        assert reason == "tool_calls"
        jsonschema.validate(arguments, parameters[name])
        message, reason = asked(server, is_stream=is_stream, tool_choice=CHOSEN, **drawn)
        [(name, arguments)] = named(message)
        assert (name, reason) == ("get_weather", "tool_calls")
        jsonschema.validate(arguments, parameters[name])


def test_c02_contradictory_choices_are_refused(server: TinyServer) -> None:
    tools, messages = json.dumps(TOOLS), '[{"role": "user", "content": "hi"}]'
    base = {"model": '"tiny"', "messages": messages}
    unknown = '{"type": "function", "function": {"name": "other"}}'
    for choice in ("{}", '"banana"', '"get_time"', unknown, '{"type": "function", "function": "get_time"}', "5", "[]"):
        assert_fields_refused(server, CHAT, {**base, "tools": tools, "tool_choice": choice}, names="tool_choice")
    for choice in ('"required"', '{"type": "function", "function": {"name": "get_time"}}'):
        assert_fields_refused(server, CHAT, {**base, "tool_choice": choice}, names="tool_choice")
        assert_fields_refused(server, CHAT, {**base, "tools": "[]", "tool_choice": choice}, names="tool_choice")


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": None} for call in message.get("tool_calls", ())]
    return {"content": message["content"] or "", "tool_calls": calls}


def test_c03_streamed_calls_join_to_the_whole_ones(server: TinyServer) -> None:
    seen: list[list[tuple[str, Any]]] = []
    for seed in range(40):
        fields = {"tool_choice": "required", "tools": STRICT, "temperature": 1, "seed": seed, "max_tokens": 400}
        whole, reason = asked(server, is_stream=False, **fields)
        streamed, streamed_reason = asked(server, is_stream=True, **fields)
        assert reason == streamed_reason
        assert without_ids(streamed) == without_ids(whole)
        ids = [call["id"] for message in (whole, streamed) for call in message["tool_calls"]]
        assert len(set(ids)) == len(ids)
        if reason == "tool_calls":
            assert whole["content"] is None
            seen.append(named(whole))
            if any(arguments == {} for _, arguments in seen[-1][:-1]):  # a call without arguments, and one behind it
                break
    else:
        pytest.fail(f"no call follows one without arguments: {seen}")


def test_c03_calls_that_are_cut_short_are_told_alike(server: TinyServer) -> None:
    for max_tokens in range(1, 150, 7):
        fields = {"tool_choice": "required", "tools": STRICT, "temperature": 1, "seed": 3, "max_tokens": max_tokens}
        whole, reason = asked(server, is_stream=False, **fields)
        streamed, streamed_reason = asked(server, is_stream=True, **fields)
        assert reason == streamed_reason
        assert without_ids(streamed) == without_ids(whole)


def prompt_tokens(server: TinyServer, messages: list[dict[str, Any]]) -> int:
    response = server.post(CHAT, messages=messages, max_tokens=1)
    assert response.status_code == 200, response.text
    assert server.post("/tokenize", messages=messages).json()["count"] == response.json()["usage"]["prompt_tokens"]
    return int(response.json()["usage"]["prompt_tokens"])


def test_c04_odd_turns_of_history_are_taken(server: TinyServer) -> None:
    user = {"role": "user", "content": "hi"}
    same = {
        prompt_tokens(server, [user, {"role": "assistant", **turn}, user])
        for turn in ({"content": ""}, {"content": None}, {})
    }
    assert len(same) == 1
    function = {"name": "get_time", "arguments": "{"}
    broken = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    unknown = {"role": "tool", "tool_call_id": "nobody", "content": parts}
    assert prompt_tokens(server, [user, broken, unknown]) > prompt_tokens(server, [user, unknown])


def test_c05_what_a_template_refuses_is_told_in_its_words() -> None:
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "be kind"}
    assistant = {"role": "assistant", "content": "yes"}
    with tiny_server("--chat-template", CHOOSY) as choosy:
        for messages, told in (
            ([system, user], "there is no system role"),
            ([system, system, user], "there is no system role"),
            ([{**system, "role": "developer"}, user], "there is no system role"),
            ([assistant], "roles must alternate"),
            ([user, user], "roles must alternate"),
        ):
            for is_stream in (False, True):
                response = choosy.post(CHAT, messages=messages, max_tokens=1, stream=is_stream)
                assert response.status_code == 400
                assert told in response.json()["error"]["message"]
                assert response.json()["error"]["param"] == "messages"
        assert choosy.post(CHAT, messages=[user, assistant, user], max_tokens=1).status_code == 200
        choosy.assert_alive()


def test_c05_several_system_turns_all_count(server: TinyServer) -> None:
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "be kind"}
    assert prompt_tokens(server, [system, system, user]) > prompt_tokens(server, [system, user])
    developer = {"role": "developer", "content": "be kind"}
    assert prompt_tokens(server, [developer, user]) == prompt_tokens(server, [system, user])


def test_c06_the_start_token_comes_once(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    settings = model / "tokenizer_config.json"
    template = "{{ bos_token }}" + "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    settings.write_text(
        json.dumps({**json.loads(settings.read_text()), "add_bos_token": True, "chat_template": template})
    )
    with tiny_server(model=model) as starting:
        messages = [{"role": "user", "content": "hi"}]
        spoken = starting.post("/tokenize", messages=messages).json()["tokens"]
        plain = starting.post("/tokenize", prompt="userhi").json()["tokens"]
        assert spoken == plain
        assert spoken.count(1) == 1 == spoken[0]
        chat = starting.post(CHAT, messages=messages, max_tokens=1, return_token_ids=True).json()
        completed = starting.complete(prompt="userhi", max_tokens=1, return_token_ids=True).json()
        assert chat["prompt_token_ids"] == completed["choices"][0]["prompt_token_ids"] == spoken
        starting.assert_alive()


def test_a_model_whose_template_shows_no_tools_refuses_them() -> None:
    with tiny_server(model=tiny_model()) as plain:
        error = plain.chat(tools=TOOLS).json()["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        assert "--chat-template" in error["message"]
