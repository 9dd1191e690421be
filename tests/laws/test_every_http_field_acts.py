"""No field of a request's body is taken and ignored, on any endpoint that has a table of fields.

Two values of an honoured field change the answer; one that is known and not honoured is refused by its name; one that
only keeps books changes nothing. A new field in a table without a row here fails.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess
from support.sse import chunks, texts_by_index
from support.tiny_engine import tiny_model
from trivium.config.sampling import SGLANG_NAMES
from trivium.server.fields import FieldTable
from trivium.server.sglang_tables import GENERATE, GENERATE_SAMPLING
from trivium.server.tables import CHAT, COMPLETIONS, DETOKENIZE, LOAD_ADAPTER, PIN, TOKENIZE, UNLOAD_ADAPTER, UNPIN

BOS, EOS, A = 1, 2, 67
"""Ids of the tiny model: start, end, and the letter a."""
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}{{ tools or '' }}{{ documents or '' }}"
    "{{ enable_thinking }}{% if add_generation_prompt %}>{{ opening }}{% endif %}"
)
REFUSED = {"timeout_s", "model", "priority", "cache_retention", "cache_retention_decode", "program"}
"""Fields whose second value may be refused; what retention does is in `tests/unit/api/test_retention.py`, what
priority does in `tests/unit/schedule/test_orders.py`, what programs do in `tests/unit/schedule/test_programs.py`."""
ADMIN = {"authorization": "Bearer boss-admin-key"}
VARYING = ("id", "created", "system_fingerprint")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A tiny model that wants a start token, with a template that has a variable."""
    folder = tmp_path_factory.mktemp("fields") / "tiny"
    shutil.copytree(tiny_model(), folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "add_bos_token": True}))
    flags = [
        "--kv-cache-memory",
        "1MiB",
        "--threads",
        "1",
        "--served-model-name",
        "tiny,alias",
        "--admin-key",
        "boss-admin-key",
        "--tool-call-parser",
        "hermes",
        "--reasoning-parser",
        "qwen3",
    ]
    with (
        ServerProcess(folder, *flags, "--chat-template", TEMPLATE) as running,
        httpx.Client(base_url=running.url, timeout=20) as client,
    ):
        yield client


@dataclass(frozen=True, slots=True)
class Row:
    """Two values of a field, between which answers must differ."""

    first: Any
    second: Any
    context: Mapping[str, Any] = field(default_factory=dict)
    """Further fields, under which the field has something to act on."""
    sees_cache: bool = False
    """Whether the number of cached tokens is part of the answer."""


MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
DOCUMENT = {"text": "b"}
DRAWN = {"temperature": 1.0, "seed": 1, "max_tokens": 24}
GREEDY = {"temperature": 0.0, "max_tokens": 24}
SAYS_A: dict[str, Any] = {**GREEDY, "logit_bias": {str(A): 100}}
CALLING: dict[str, Any] = {**GREEDY, "max_tokens": 120, "tools": [TOOL]}
THINKING: dict[str, Any] = {**GREEDY, "chat_template_kwargs": {"opening": "<think>"}}
ENDS: dict[str, Any] = {**GREEDY, "logit_bias": {str(EOS): 100}}

SHARED: dict[str, Row] = {
    "model": Row("tiny", "alias", GREEDY),
    "n": Row(1, 2, DRAWN),
    "best_of": Row(1, 8, DRAWN),
    "temperature": Row(0, 1, {"seed": 1, "max_tokens": 24}),
    "top_k": Row(0, 2, DRAWN),
    "top_p": Row(1, 0.1, DRAWN),
    "min_p": Row(0, 0.5, DRAWN),
    "typical_p": Row(1, 0.1, DRAWN),
    "repetition_penalty": Row(1, 2, GREEDY),
    "presence_penalty": Row(0, 2, DRAWN),
    "frequency_penalty": Row(0, 2, DRAWN),
    "logit_bias": Row({}, {str(A): 100}, GREEDY),
    "bad_words": Row([], ["aa"], SAYS_A),
    "seed": Row(1, 2, {"temperature": 1, "max_tokens": 24}),
    "max_tokens": Row(3, 5, {"temperature": 0}),
    "min_tokens": Row(0, 5, ENDS),
    "stop": Row([], "aaa", SAYS_A),
    "stop_regex": Row([], "a{3}", SAYS_A),
    "stop_token_ids": Row([], [A], SAYS_A),
    "include_stop_str_in_output": Row(False, True, {**SAYS_A, "stop": "aaa"}),
    "ignore_eos": Row(False, True, ENDS),
    "skip_special_tokens": Row(True, False, {**GREEDY, "logit_bias": {str(BOS): 100}}),
    "prompt_logprobs": Row(0, 3, GREEDY),
    "prompt_logprob_start": Row(0, 2, {**GREEDY, "prompt_logprobs": 0}),
    **{
        name: Row(None, value, {**DRAWN, "max_tokens": 8})
        for name, value in {
            "response_format": {"type": "json_object"},
            "structured_outputs": {"choice": ["ab", "ba"]},
            "guided_json": {"type": "integer"},
            "guided_json_object": True,
            "guided_regex": "[0-9]+",
            "guided_choice": ["ab", "ba"],
            "guided_grammar": 'start: "ab"',
            "json_schema": '{"type": "integer"}',
            "regex": "[0-9]+",
            "ebnf": 'root ::= "ab"',
            "structural_tag": {"format": {"type": "const_string", "value": "ab"}},
            "grammar": 'root ::= "ab"',
        }.items()
    },
    "stream": Row(False, True, GREEDY),
    "stream_options": Row({"include_usage": False}, {"include_usage": True}, {**GREEDY, "stream": True}),
    "cache_retention": Row([], [{"token_range": [0, None], "priority": 90}], GREEDY),
    "cache_retention_decode": Row(None, {"priority": 90}, GREEDY),
    "cache_salt": Row("warm", "fresh", GREEDY, sees_cache=True),
    "priority": Row(0, 1, GREEDY),
    "program": Row(None, {"id": ""}, GREEDY),
    "timeout_s": Row(60, 1e-6, GREEDY),
    "return_token_ids": Row(False, True, GREEDY),
    "add_special_tokens": Row(True, False, GREEDY),
}

ROWS: dict[str, tuple[FieldTable, Mapping[str, Any], dict[str, Row]]] = {
    "/v1/completions": (
        COMPLETIONS,
        {"prompt": "hello"},
        {
            **SHARED,
            "prompt": Row("hello", [BOS, A], GREEDY),
            "echo": Row(False, True, GREEDY),
            "logprobs": Row(0, 2, GREEDY),
            "logprobs_mode": Row("raw", "processed", {**DRAWN, "temperature": 0.5, "logprobs": 0}),
        },
    ),
    "/v1/chat/completions": (
        CHAT,
        {"messages": MESSAGES},
        {
            **SHARED,
            "messages": Row(MESSAGES, [{"role": "user", "content": "bye"}], GREEDY),
            "max_completion_tokens": Row(3, 5, {"temperature": 0}),
            "logprobs": Row(False, True, GREEDY),
            "top_logprobs": Row(0, 2, {**GREEDY, "logprobs": True}),
            "logprobs_mode": Row("raw", "processed", {**DRAWN, "temperature": 0.5, "logprobs": True}),
            "add_generation_prompt": Row(True, False, GREEDY),
            "continue_final_message": Row(
                False, True, {**GREEDY, "messages": [*MESSAGES, {"role": "assistant", "content": "I"}],
                              "add_generation_prompt": False, "chat_template_kwargs": {"mood": "!"}}),
            "chat_template_kwargs": Row({}, {"mood": "!"}, GREEDY),
            "tools": Row(None, [TOOL], GREEDY),
            "documents": Row(None, [DOCUMENT], GREEDY),
            "reasoning_effort": Row(None, "none", GREEDY),
            "tool_choice": Row("none", "required", CALLING),
            "parallel_tool_calls": Row(
                True, False, {**CALLING, "tool_choice": "required", "logit_bias": {str(EOS): -100}}
            ),
            "max_reasoning_tokens": Row(None, 2, THINKING),
            "thinking_token_budget": Row(None, 2, THINKING),
            "include_reasoning": Row(True, False, THINKING),
            "separate_reasoning": Row(True, False, THINKING),
        },
    ),
    "/tokenize": (
        TOKENIZE,
        {"prompt": "hello"},
        {
            "model": Row("tiny", "other"),
            "prompt": Row("hello", "bye"),
            "messages": Row(MESSAGES, [{"role": "user", "content": "bye"}], {"prompt": None}),
            "add_special_tokens": Row(True, False),
            "return_token_strs": Row(False, True),
            "add_generation_prompt": Row(True, False, {"prompt": None, "messages": MESSAGES}),
            "continue_final_message": Row(
                False, True, {"prompt": None, "messages": [*MESSAGES, {"role": "assistant", "content": "I"}],
                              "add_generation_prompt": False, "chat_template_kwargs": {"mood": "!"}}),
            "chat_template_kwargs": Row({}, {"mood": "!"}, {"prompt": None, "messages": MESSAGES}),
            "tools": Row(None, [TOOL], {"prompt": None, "messages": MESSAGES}),
            "documents": Row(None, [DOCUMENT], {"prompt": None, "messages": MESSAGES}),
            "reasoning_effort": Row(None, "none", {"prompt": None, "messages": MESSAGES}),
        },
    ),
    "/detokenize": (
        DETOKENIZE,
        {"tokens": [A]},
        {"model": Row("tiny", "other"), "tokens": Row([A], [A, A])},
    ),
}  # fmt: skip
LONG = "hello" * 8
"""Fills whole pages, so that it can be pinned."""
LONG_MESSAGES = [{"role": "user", "content": LONG}]
PIN_ROWS = {
    "model": Row("tiny", "other"),
    "prompt": Row(LONG, [BOS, *[A] * 70]),
    "messages": Row(LONG_MESSAGES, [{"role": "user", "content": LONG + "bye"}], {"prompt": None}),
    "add_special_tokens": Row(True, False),
    "add_generation_prompt": Row(True, False, {"prompt": None, "messages": LONG_MESSAGES}),
    "continue_final_message": Row(
        False, True, {"prompt": None, "messages": [*LONG_MESSAGES, {"role": "assistant", "content": "I"}],
                      "add_generation_prompt": False, "chat_template_kwargs": {"mood": "!"}}),
    "chat_template_kwargs": Row({}, {"mood": "!"}, {"prompt": None, "messages": LONG_MESSAGES}),
    "tools": Row(None, [TOOL], {"prompt": None, "messages": LONG_MESSAGES}),
    "documents": Row(None, [DOCUMENT], {"prompt": None, "messages": LONG_MESSAGES}),
    "reasoning_effort": Row(None, "none", {"prompt": None, "messages": LONG_MESSAGES}),
    "cache_salt": Row("a", "b"),
    "ttl_s": Row(None, 1000.0),
}  # fmt: skip
GENERATE_CONTEXT = {"sampling_params": {"temperature": 0.0, "max_new_tokens": 24}}
SCORED = {**GENERATE_CONTEXT, "return_logprob": True}
GENERATE_ROWS: dict[str, Row] = {
    "model": Row("tiny", "other", GENERATE_CONTEXT),
    "text": Row("hello", "bye", GENERATE_CONTEXT),
    "input_ids": Row([BOS, A], [BOS, A, A], {**GENERATE_CONTEXT, "text": None}),
    "sampling_params": Row(GENERATE_CONTEXT["sampling_params"], [{"temperature": 0.0, "max_new_tokens": 4}]),
    "return_logprob": Row(False, True, GENERATE_CONTEXT),
    "logprob_start_len": Row(-1, 0, SCORED),
    "top_logprobs_num": Row(0, 2, SCORED),
    "return_text_in_logprobs": Row(False, True, SCORED),
    "stream": Row(False, True, GENERATE_CONTEXT),
    "incremental_streaming_output": Row(False, True, {**GENERATE_CONTEXT, "stream": True}),
    "reasoning_parser": Row(None, "qwen3", GENERATE_CONTEXT),
    "starts_in_reasoning": Row(False, True, {**GENERATE_CONTEXT, "reasoning_parser": "qwen3"}),
    "cache_salt": Row("warm", "unused", GENERATE_CONTEXT, sees_cache=True),
    "priority": Row(0, 1, GENERATE_CONTEXT),
    "program": Row(None, {"id": ""}, GENERATE_CONTEXT),
    "timeout_s": Row(60, 1e-6, GENERATE_CONTEXT),
    "add_special_tokens": Row(True, False, GENERATE_CONTEXT),
}
ROWS["/generate"] = (GENERATE, {"text": "hello"}, GENERATE_ROWS)
THEIRS = {ours: theirs for theirs, ours in SGLANG_NAMES.items()}
GENERATE_SAMPLING_ROWS = {
    THEIRS.get(name, name): row for name, row in SHARED.items() if THEIRS.get(name, name) in GENERATE_SAMPLING.honoured
} | {"logprobs_mode": Row("raw", "processed", {**DRAWN, "temperature": 0.5})}
CASES = [(path, name) for path, (_, _, rows) in ROWS.items() for name in rows]


def answer_of(server: httpx.Client, path: str, body: Mapping[str, Any], *, sees_cache: bool = False) -> Any:
    """What a client learns from an answer: not its id, not its time, not how a stream was cut into pieces."""
    response = server.post(path, json={"model": "tiny", **body})
    if path == "/generate":
        return generated(response, sees_cache=sees_cache)
    if response.headers["content-type"].startswith("text/event-stream"):
        seen = chunks(response.text)
        return "stream", texts_by_index(seen), [chunk["usage"] is not None for chunk in seen if "usage" in chunk]
    answer = {name: value for name, value in response.json().items() if name not in VARYING}
    for choice in answer.get("choices", ()):
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    if "usage" in answer:
        details = answer["usage"].pop("prompt_tokens_details")
        answer["cached"] = details["cached_tokens"] if sees_cache else None
    return response.status_code, answer


def generated(response: httpx.Response, *, sees_cache: bool) -> Any:
    """What a client learns from an answer of `/generate`; of a stream, also how much its events repeat."""
    kind: Any = response.status_code
    if response.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")]
        found = [json.loads(line) for line in lines if line.startswith("{")]
        kind, answers = "stream", [found[0], found[-1]]
    else:
        told = response.json()
        answers = told if isinstance(told, list) else [told]
    for answer in answers:
        meta = answer.get("meta_info", {})
        for name in ("id", "weight_version", "e2e_latency", *(() if sees_cache else ("cached_tokens",))):
            meta.pop(name, None)
    return kind, answers[-1] if kind == "stream" else answers


@pytest.mark.parametrize("path", ROWS)
def test_every_honoured_field_has_its_row(path: str) -> None:
    table, _, rows = ROWS[path]
    assert set(rows) == set(table.honoured)


@pytest.mark.parametrize(("path", "name"), CASES)
def test_two_values_of_a_field_give_two_answers(server: httpx.Client, path: str, name: str) -> None:
    _, base, rows = ROWS[path]
    row = rows[name]
    first, second = ({**base, **row.context, name: value} for value in (row.first, row.second))
    answer_of(server, path, first)

    answer = answer_of(server, path, first, sees_cache=row.sees_cache)
    other = answer_of(server, path, second, sees_cache=row.sees_cache)

    assert answer[0] in {200, "stream"}, answer
    assert answer == answer_of(server, path, first, sees_cache=row.sees_cache)
    assert answer != other
    assert other[0] in {200, "stream"} or name in REFUSED, other


def test_every_sampling_parameter_of_generate_has_its_row() -> None:
    assert set(GENERATE_SAMPLING_ROWS) == set(GENERATE_SAMPLING.honoured)


@pytest.mark.parametrize("name", GENERATE_SAMPLING_ROWS)
def test_two_values_of_a_sampling_parameter_give_two_answers(server: httpx.Client, name: str) -> None:
    row = GENERATE_SAMPLING_ROWS[name]
    context = {THEIRS.get(key, key): value for key, value in row.context.items()}
    scored = name == "logprobs_mode"

    def ask(value: Any) -> Any:
        params = {**context, name: value}
        starts = {"return_logprob": True} if scored else {}
        return answer_of(server, "/generate", {"text": "hello", "sampling_params": params, **starts})

    ask(row.first)
    answer, other = ask(row.first), ask(row.second)
    assert answer[0] == 200, answer
    assert answer == ask(row.first)
    assert answer != other
    assert other[0] == 200 or name in REFUSED, other


def test_sampling_parameters_that_are_not_honoured_are_refused_by_their_names(server: httpx.Client) -> None:
    for name in (*GENERATE_SAMPLING.unsupported, "invented"):
        body = {"text": "hello", "sampling_params": {name: {"asked": "for"}}}
        response = server.post("/generate", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", ROWS)
def test_what_is_known_and_not_honoured_is_refused_by_its_name(server: httpx.Client, path: str) -> None:
    table, base, _ = ROWS[path]
    for name in table.unsupported:
        response = server.post(path, json={"model": "tiny", **base, name: {"asked": "for"}})
        assert response.status_code == 400, name
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_what_only_keeps_books_changes_nothing(server: httpx.Client, path: str) -> None:
    table, base, _ = ROWS[path]
    base = {**base, **(GENERATE_CONTEXT if path == "/generate" else GREEDY)}
    plain = answer_of(server, path, base)
    assert table.bookkeeping
    for name in table.bookkeeping:
        for value in ("x", {"a": "b"}, True):
            assert answer_of(server, path, {**base, name: value}) == plain, name


@pytest.mark.parametrize("path", ROWS)
def test_what_is_in_no_table_is_refused_by_its_name(server: httpx.Client, path: str) -> None:
    _, base, _ = ROWS[path]
    error = server.post(path, json={"model": "tiny", **base, "invented": 1}).json()["error"]
    assert (error["param"], error["code"]) == ("invented", "unknown_parameter")


def pinned_by(server: httpx.Client, body: Mapping[str, Any]) -> Any:
    """What a body pins: how much, where, and for how long."""
    made = server.post("/v1/cache/pin", json={"model": "tiny", "prompt": LONG, **body}, headers=ADMIN)
    if made.status_code != 200:
        return made.status_code, made.json()["error"]["param"]
    answer = made.json()
    server.post("/v1/cache/flush", headers=ADMIN)  # what is not pinned goes
    state = server.get("/v1/cache", headers=ADMIN).json()
    freed = server.post("/v1/cache/unpin", json={"pin_id": answer["pin_id"]}, headers=ADMIN)
    assert freed.status_code == 200, freed.text
    (pin,) = state["pins"]
    expires_in_s = pin["expires_in_s"] and round(pin["expires_in_s"], -2)
    return 200, answer["prompt_tokens"], answer["pinned_tokens"], expires_in_s, state["namespaces"]


def test_every_honoured_field_of_a_pin_has_its_row() -> None:
    assert set(PIN_ROWS) == set(PIN.honoured)
    assert set(UNPIN.honoured) == {"pin_id"}


def test_every_field_of_loading_an_adapter_is_known() -> None:
    """What they do is in `tests/system/test_adapters.py` and `tests/unit/server/test_adapters.py`."""
    assert set(LOAD_ADAPTER.honoured) == {"lora_name", "lora_path", "load_inplace"}
    assert set(UNLOAD_ADAPTER.honoured) == {"lora_name"}


@pytest.mark.parametrize("name", PIN_ROWS)
def test_two_values_of_a_field_pin_differently(server: httpx.Client, name: str) -> None:
    row = PIN_ROWS[name]
    first, second = ({**row.context, name: value} for value in (row.first, row.second))
    made = pinned_by(server, first)
    assert made[0] == 200, made
    assert made == pinned_by(server, first)
    assert made != (other := pinned_by(server, second))
    assert other[0] == 200 or name in REFUSED, other


def test_unpinning_heeds_which_pin(server: httpx.Client) -> None:
    made = server.post("/v1/cache/pin", json={"prompt": LONG}, headers=ADMIN).json()
    other = server.post("/v1/cache/unpin", json={"pin_id": "pin-of-nobody"}, headers=ADMIN)
    assert other.status_code == 404
    assert server.post("/v1/cache/unpin", json={"pin_id": made["pin_id"]}, headers=ADMIN).status_code == 200
    assert server.get("/v1/cache", headers=ADMIN).json()["pins"] == []


@pytest.mark.parametrize("path", ["/v1/cache/pin", "/v1/cache/unpin"])
def test_what_no_pin_knows_is_refused_by_its_name(server: httpx.Client, path: str) -> None:
    error = server.post(path, json={"invented": 1}, headers=ADMIN).json()["error"]
    assert (error["param"], error["code"]) == ("invented", "unknown_parameter")
