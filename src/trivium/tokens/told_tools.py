"""Tools told in words, for chat templates that never show any: in the way of Hermes, which many models have read.

A system turn lists the tools and says how to call them; calls and results of earlier turns become text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

DIALECT = "hermes"
"""In which calls are asked for."""
_INTRODUCTION = """You may call functions. Their descriptions in JSON are within <tools></tools>:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


def tell_tools(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation whose system turn tells of tools, and in which only texts are left.

    Args:
        messages: What `normalise_messages` returned.
        tools: Descriptions of functions in OpenAI's shape.
    """
    told = _INTRODUCTION.format(tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools))
    turns = [_as_text(message) for message in messages]
    if turns[0]["role"] == "system":
        turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n\n{told}"}
    else:
        turns.insert(0, {"role": "system", "content": told})
    return _joined(turns)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message['content']}\n</tool_response>",
            "is_result": True,
        }
    calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, (message["content"], *calls)))} if calls else kept


def _call_text(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {written or "{}"}}}\n</tool_call>'


def _joined(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make one turn of results that follow each other, since many templates want roles to alternate."""
    joined: list[dict[str, Any]] = []
    was_result = False
    for turn in turns:
        is_result = turn.pop("is_result", False)
        if is_result and was_result:
            joined[-1]["content"] += "\n" + turn["content"]
        else:
            joined.append(turn)
        was_result = is_result
    return joined
