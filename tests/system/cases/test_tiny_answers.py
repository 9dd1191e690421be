"""Answers that must not depend on form, cache or generation config (cases A16 A17, D02, and A14 D05 over HTTP)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.sse import chunks
from support.tiny_model import write_tiny_model
from support.tiny_server import TinyServer, tiny_server

PAGE_LEN = 16


def usages(server: TinyServer, path: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Usage of a request sent whole, streamed with usage, streamed without, and whole again."""
    seen: list[dict[str, Any]] = []
    forms: list[dict[str, Any]] = [
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True},
        {},
    ]
    for form in forms:
        response = server.post(path, **fields, **form)
        assert response.status_code == 200, response.text
        if not form:
            seen.append(response.json()["usage"])
            continue
        sent = chunks(response.text)
        counted = [chunk for chunk in sent if chunk.get("usage")]
        assert len(counted) == ("stream_options" in form)
        if counted:
            assert sent[-1] is counted[0]
            assert counted[0]["choices"] == []
            seen.append(counted[0]["usage"])
    return seen


@pytest.mark.parametrize("is_chat", [False, True])
def test_a17_usage_is_the_same_whole_and_streamed_cold_and_warm(server: TinyServer, is_chat: bool) -> None:
    prompt = ("a conversation" if is_chat else "a prompt text.") * 21
    fields: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}
    fields |= {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    cold, *warm = usages(server, "/v1/chat/completions" if is_chat else "/v1/completions", fields)
    assert cold["prompt_tokens"] >= 290
    assert cold["prompt_tokens_details"] == {"cached_tokens": 0}
    assert cold["completion_tokens"] == 4
    for usage in warm:
        assert usage["prompt_tokens_details"] == {"cached_tokens": cold["prompt_tokens"] - 1}
        assert {**usage, "prompt_tokens_details": None} == {**cold, "prompt_tokens_details": None}


def test_a16_every_end_token_of_the_generation_config_is_held_back(tmp_path: Path) -> None:
    with tiny_server() as plain:
        dot = plain.ids(".")[0]
    model = write_tiny_model(tmp_path / "many-ends")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0, dot], "bos_token_id": 1}))
    with tiny_server(model=model) as server:
        for end in (2, 0, dot):
            fields: dict[str, Any] = {"logit_bias": {str(end): 100}, "max_tokens": 40, "return_token_ids": True}
            early = server.complete(**fields).json()
            assert early["usage"]["completion_tokens"] == 1
            assert early["choices"][0]["finish_reason"] == "stop"
            late = server.complete(**fields, min_tokens=20, stop=["."]).json()
            assert late["usage"]["completion_tokens"] == 21
            assert not {2, 0, dot} & set(late["choices"][0]["token_ids"][:20])
            assert late["choices"][0]["token_ids"][20] == end


@pytest.mark.parametrize("length", [PAGE_LEN - 1, PAGE_LEN, PAGE_LEN + 1, 3 * PAGE_LEN + 1])
def test_d02_echoed_scores_are_equal_cold_and_warm_in_every_order(server: TinyServer, length: int) -> None:
    shared = [(7 * length + 3 * idx) % 250 + 3 for idx in range(length)]
    prompts = [shared, [*shared, 7, 8], [*shared[:-2], 9]]
    fields: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1}

    def scores(idx: int) -> list[float | None]:
        body = server.complete(prompt=prompts[idx], **fields).json()
        return list(body["choices"][0]["logprobs"]["token_logprobs"][: len(prompts[idx])])

    cold = [scores(idx) for idx in range(3)]
    for warm_up in prompts:
        server.complete(prompt=warm_up, max_tokens=1)
    for order in ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
        for idx in order:
            assert scores(idx) == cold[idx]
