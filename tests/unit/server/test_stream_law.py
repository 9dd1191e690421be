"""A stream put together again is the whole answer: whatever is asked, whatever tokens come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_engine import EOS_ID, FakeEngine, JoiningTemplate
from support.server_site import open_site
from support.sse import chunks
from trivium.config.sampling import SamplingParams
from trivium.grammar.detect import ModelDialects

tokens = st.lists(
    st.one_of(st.integers(0, 255), st.sampled_from([*"é🐱 a".encode()]), st.integers(256, 299)), min_size=1
)
shapes = st.fixed_dictionaries(
    {"n": st.integers(1, 3), "max_tokens": st.integers(0, 12)},
    optional={"return_token_ids": st.booleans(), "skip_special_tokens": st.booleans(), "ignore_eos": st.booleans()},
)
completion_shapes = st.fixed_dictionaries(
    {"prompt": st.one_of(st.just("hé"), st.just(["a", "bc"]), st.just([1, 299]))},
    optional={"echo": st.booleans(), "logprobs": st.integers(0, 2)},
)
chat_shapes = st.sampled_from([{}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
LISTS = ("token_ids", "tokens", "token_logprobs", "top_logprobs", "text_offset", "content")


def script_of(answers: Sequence[Sequence[int]]) -> Any:
    def script(prompt_ids: Sequence[int], choice: int, params: SamplingParams) -> list[int]:
        return [*answers[(len(prompt_ids) + choice) % len(answers)], EOS_ID]

    return script


def join(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Append a piece of a choice to what came before it."""
    for key, value in piece.items():
        if isinstance(value, dict):
            join(whole.setdefault(key, {}), value)
        elif key in LISTS or (key in {"text", "content"} and isinstance(value, str)):
            whole[key] = whole.get(key, type(value)()) + value
        elif value is not None or key not in whole:
            whole[key] = value


def rebuild(seen: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in seen:
        for piece in chunk["choices"]:
            given_piece = dict(piece)
            if given_piece.get("logprobs") is None and "logprobs" in choices.get(piece["index"], {}):
                del given_piece["logprobs"]
            elif choices.get(piece["index"], {"logprobs": 0}).get("logprobs") is None and given_piece.get("logprobs"):
                choices[piece["index"]]["logprobs"] = {}
            join(choices.setdefault(piece["index"], {}), given_piece)
    return [choices[index] for index in sorted(choices)]


def ask_twice(
    path: str, answers: Sequence[Sequence[int]], fields: dict[str, Any], **site_options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    async def ask() -> tuple[Any, list[dict[str, Any]]]:
        site = open_site(FakeEngine(script_of(answers), cached_len=1), **site_options)
        whole = await site.post(path, **fields)
        streamed = await site.post(path, **fields, stream=True, stream_options={"include_usage": True})
        await site.client.aclose()
        assert whole.status_code == streamed.status_code == 200, whole.text
        assert site.engine.aborted == []
        return whole.json(), chunks(streamed.text)

    return asyncio.run(ask())


@settings(max_examples=60, deadline=None)
@given(answers=st.lists(tokens, min_size=1, max_size=3), shape=shapes, own=completion_shapes)
def test_streamed_completions_join_to_the_whole(
    answers: list[list[int]], shape: dict[str, Any], own: dict[str, Any]
) -> None:
    whole, seen = ask_twice("/v1/completions", answers, {**shape, **own})
    assert seen[-1]["usage"] == whole["usage"]
    rebuilt = rebuild(seen)
    assert len(rebuilt) == len(whole["choices"])
    for mine, theirs in zip(rebuilt, whole["choices"], strict=True):
        assert mine == theirs


@settings(max_examples=60, deadline=None)
@given(answers=st.lists(tokens, min_size=1, max_size=3), shape=shapes, own=chat_shapes)
def test_streamed_chats_join_to_the_whole(answers: list[list[int]], shape: dict[str, Any], own: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    whole, seen = ask_twice("/v1/chat/completions", answers, {"messages": messages, **shape, **own})
    assert seen[-1]["usage"] == whole["usage"]
    for mine, theirs in zip(rebuild(seen), whole["choices"], strict=True):
        assert mine["delta"]["content"] == theirs["message"]["content"]
        assert mine["delta"]["role"] == theirs["message"]["role"]
        assert mine["finish_reason"] == theirs["finish_reason"]
        assert mine.get("token_ids", []) == theirs.get("token_ids", [])
        expected = theirs["logprobs"]["content"] if theirs["logprobs"] else []
        assert ((mine["logprobs"] or {}).get("content") or []) == expected


pieces = st.lists(
    st.sampled_from([
        "<think>", "</think>", "\n", "hé 🐱", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "é"}}',
        '{"name": "g", "arguments": {}}', '<tool_call>\n{"name": "f", "arguments": {"b": [1, "}"]}}\n</tool_call>',
        "<tool", "{", "<",
    ]),
    max_size=8,
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]


def merge_calls(seen: Sequence[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """Put the calls of a choice together; its indices come in order, and what is told once is told once."""
    calls: list[dict[str, Any]] = []
    for news in (n for c in seen for choice in c["choices"] if choice["index"] == index
                 for n in choice["delta"].get("tool_calls", ())):  # fmt: skip
        if news["index"] == len(calls):
            calls.append({"id": news["id"], "type": news["type"], "function": dict(news["function"])})
        else:
            assert news["index"] < len(calls)
            assert set(news) == {"index", "function"}
            calls[news["index"]]["function"]["arguments"] += news["function"]["arguments"]
    return calls


@settings(max_examples=120, deadline=None)
@given(texts=st.lists(pieces.map("".join), min_size=1, max_size=3), max_tokens=st.integers(1, 200), own=chat_shapes)
def test_streamed_calls_and_reasoning_join_to_the_whole(texts: list[str], max_tokens: int, own: dict[str, Any]) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "n": 2, "max_tokens": max_tokens, **own}
    whole, seen = ask_twice(
        "/v1/chat/completions",
        [list(text.encode()) for text in texts],
        fields,
        template=JoiningTemplate(uses=["tools"]),
        dialects=ModelDialects(tools="hermes", reasoning="qwen3"),
    )
    assert seen[-1]["usage"] == whole["usage"]
    for mine, theirs in zip(rebuild(seen), whole["choices"], strict=True):
        message, delta = theirs["message"], mine["delta"]
        assert delta["content"] == (message["content"] or "")
        joined = "".join(
            choice["delta"].get("reasoning_content", "")
            for c in seen
            for choice in c["choices"]
            if choice["index"] == theirs["index"]
        )
        assert joined == message.get("reasoning_content", "")
        calls, expected = merge_calls(seen, theirs["index"]), message.get("tool_calls", [])
        assert [call["function"] for call in calls] == [call["function"] for call in expected]
        assert mine["finish_reason"] == theirs["finish_reason"]
        assert (theirs["finish_reason"] == "tool_calls") <= bool(expected)
        assert "tool_calls" not in message or expected
        scores = theirs["logprobs"]["content"] if theirs["logprobs"] else []
        assert ((mine["logprobs"] or {}).get("content") or []) == scores
