"""What a server tells of the dialects that it reads, and that any model can be told of tools."""

from __future__ import annotations

import json
from pathlib import Path

from support.chat_templates import REASONING_HERMES
from support.tiny_model import write_tiny_model
from support.tiny_server import tiny_server

TOOL = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


def test_dialects_are_told_at_the_start_and_in_the_list_of_models() -> None:
    with tiny_server("--chat-template", REASONING_HERMES) as server:
        details = server.client.get("/v1/models").json()["data"][0]["details"]
        assert (details["tool_call_parser"], details["reasoning_parser"]) == ("hermes", "qwen3")
        assert any("tool calls: hermes, reasoning: qwen3" in line for line in server.log)


def test_a_model_whose_template_shows_no_tools_calls_them_where_a_dialect_is_named(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", max_positions=4096)
    with tiny_server("--tool-parser", "hermes", model=model, kv_cache_memory="4MiB") as server:
        answer = server.chat(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=120).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"] in {"Oslo", "Lima"}
        counted = server.post("/tokenize", messages=[{"role": "user", "content": "hi"}], tools=[TOOL]).json()
        assert counted["count"] == answer["usage"]["prompt_tokens"]
