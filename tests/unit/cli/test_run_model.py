"""`generate`, `chat` and `describe` on a tiny model in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.chat_templates import REASONING_HERMES
from support.command_line import Run

GREEDY = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos", "--kv-cache-memory", "4MiB")


def answers(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_generate_answers_flags_stdin_and_a_stream_alike(trivium: Run, tiny: Path) -> None:
    flag = trivium("generate", tiny, "-p", "abc", *GREEDY)
    assert flag.code == 0
    assert trivium("generate", tiny, *GREEDY, stdin="abc\n").out == flag.out
    assert trivium("generate", tiny, "-p", "abc", "--stream", *GREEDY).out == flag.out


def test_generate_writes_json_with_usage(trivium: Run, tiny: Path) -> None:
    outcome = trivium("generate", tiny, "-p", "abc", "-p", "de", "--json", "-n", "2", "--logprobs", "1", *GREEDY)
    first, second = answers(outcome.out)
    assert first["usage"]["completion_tokens"] == 12
    assert [answer["index"] for answer in second["outputs"]] == [0, 1]
    assert len(first["outputs"][0]["logprobs"]) == 6


def test_generate_reads_json_lines_with_parameters_of_their_own(trivium: Run, tiny: Path) -> None:
    lines = [
        {"prompt": "abc", "max_tokens": 2},
        {"prompt": [97, 98, 99]},
        {"messages": [{"role": "user", "content": "abc"}], "logit_bias": {"65": 100}},
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    first, second, third = answers(trivium("generate", tiny, "--jsonl", "--json", *GREEDY, stdin=text).out)
    assert first["usage"]["completion_tokens"] == 2
    assert second["usage"]["completion_tokens"] == 6
    assert set(third["outputs"][0]["token_ids"]) == {65}


@pytest.mark.parametrize(
    ("words", "stdin", "code", "message"),
    [
        (("--jsonl",), "{", 1, "line 1 of standard input is not JSON"),
        (("--jsonl",), '{"prompt": "a", "messages": []}', 1, "either prompt or messages"),
        (("--jsonl",), '{"prompt": "a", "heat": 1}', 1, "heat"),
        (("--jsonl",), "\n", 2, "no prompt"),
        (("--jsonl", "-p", "x"), "", 2, "leave out --prompt"),
        (("-p", "x", "--stream", "--json"), "", 2, "--stream"),
        (("-p", "x", "--stream", "--best-of", "2"), "", 2, "--stream"),
        (("-p", "x", "--logprobs", "0"), "", 2, "--logprobs needs --json"),
        (("-p", "x", "--prompt-logprobs", "1"), "", 2, "--prompt-logprobs needs --json"),
        (("--jsonl",), '{"prompt": "a", "logprobs": 1}', 2, "--logprobs needs --json"),
        (("-p", "x", "--temperature", "-1"), "", 2, "temperature is -1.0"),
        (("-p", "x", "--logit-bias", "99999=1"), "", 1, "logit_bias is 99999"),
        (("-p", "x" * 600), "", 1, "512"),
    ],
)
def test_generate_says_what_is_wrong(
    trivium: Run, tiny: Path, words: tuple[str, ...], stdin: str, code: int, message: str
) -> None:
    outcome = trivium("generate", tiny, *words, stdin=stdin)
    assert outcome.code == code
    assert message in outcome.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": 5}', "prompt is 5; it must be a text or a list of token ids"),
        ('{"prompt": [true]}', "prompt is [true]"),
        ('{"prompt": null}', "prompt is null"),
        ('{"prompt": []}', "no tokens"),
        ('{"prompt": [65, 99999]}', "token id 99999 is outside the vocabulary"),
        ('{"messages": 5}', "messages is 5; it must be a list of messages"),
        ('{"messages": ["hello"]}', "messages is"),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content: it is 5; it must be a text"),
        ('{"prompt": "a", "logit_bias": 5}', "logit_bias is 5"),
        ('{"prompt": "a", "logit_bias": {"x": 2}}', "logit_bias is"),
        ('{"prompt": "a", "logit_bias": {"5": "x"}}', "logit_bias is 'x'"),
        ('{"prompt": "a", "logit_bias": {"99999": 1}}', "logit_bias is 99999"),
        ('{"prompt": "a", "stop_token_ids": 5}', "stop_token_ids is 5"),
        ('{"prompt": "a", "stop": null}', "stop is None"),
        ('{"prompt": "a", "logprobs_mode": []}', "logprobs_mode is []"),
        ('{"prompt": "a", "temperature": 1' + "0" * 400 + "}", "temperature is 1"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": "a", "heat": 1}', "no parameter 'heat'"),
        ("[]", "must be an object"),
    ],
)
def test_a_line_of_a_wrong_type_is_named_and_nothing_runs(trivium: Run, tiny: Path, line: str, message: str) -> None:
    outcome = trivium("generate", tiny, "--jsonl", *GREEDY, stdin='{"prompt": "a"}\n\n' + line + "\n")
    assert (outcome.code, outcome.out) == (1, "")
    assert "line 3 of standard input" in outcome.err
    assert message in outcome.err


def test_chat_remembers_until_it_is_reset(trivium: Run, tiny: Path) -> None:
    words = ("chat", tiny, *GREEDY)
    once = trivium(*words, stdin="hello\n").out
    both = trivium(*words, stdin="hello\nhello\n").out
    again = trivium(*words, stdin="hello\n/reset\nhello\n/exit\nnever\n").out
    assert both.startswith(once)
    assert both != once * 2
    assert again == once * 2


def test_chat_has_a_system_message_and_lists_its_commands(trivium: Run, tiny: Path) -> None:
    plain = trivium("chat", tiny, *GREEDY, stdin="hello\n")
    told = trivium("chat", tiny, "--system", "Be brief.", *GREEDY, stdin="/what\nhello\n")
    assert told.out != plain.out
    assert "no command /what" in told.err


def test_chat_goes_on_after_a_message_that_is_too_long(trivium: Run, tiny: Path) -> None:
    outcome = trivium("chat", tiny, *GREEDY, stdin="x" * 600 + "\nhello\n")
    assert outcome.code == 0
    assert "trivium: " in outcome.err
    assert outcome.out == trivium("chat", tiny, *GREEDY, stdin="hello\n").out


def test_describe_shows_the_model_without_loading_it(trivium: Run, tiny: Path) -> None:
    facts = json.loads(trivium("describe", tiny, "--page-len", "8", "--json").out)
    assert facts["configuration"]["architecture"] == "LlamaForCausalLM"
    assert sum(row["tensors"] for row in facts["tensors"]) > 10
    [group] = facts["kv cache"]
    assert group["bytes per token"] == 2 * 2 * 8 * 4 * 2  # K and V, two heads of 8 floats, two layers
    assert group["bytes per page of 8"] == 8 * group["bytes per token"]
    assert (facts["chat"]["shows tools"], facts["chat"]["tool calls"]) == (False, "not read")
    text = trivium("describe", tiny).out
    for title in ("configuration", "rope", "tensors", "kv cache", "chat", "options"):
        assert f"\n{title}\n" in text


def test_describe_tells_the_dialects_of_a_template(trivium: Run, tiny: Path) -> None:
    words = ("describe", tiny, "--json", "--chat-template", REASONING_HERMES)
    found = {"template": "default", "shows tools": True, "shows documents": False}
    assert json.loads(trivium(*words).out)["chat"] == {**found, "tool calls": "hermes", "reasoning": "qwen3"}
    named = json.loads(trivium(*words, "--tool-parser", "mistral", "--reasoning-parser", "none").out)["chat"]
    assert named == {**found, "tool calls": "mistral", "reasoning": "not split off"}
    outcome = trivium(*words, "--tool-parser", "banana")
    assert outcome.code != 0
    assert "tool_call_parser is 'banana'" in outcome.err


def test_reasoning_of_a_chat_is_shown_to_terminals_only(trivium: Run, tiny: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"
    assert trivium("chat", tiny, "--chat-template", template, *GREEDY, stdin="hello\n").out == "\n"


def test_describe_build_names_the_kernels(trivium: Run) -> None:
    facts = json.loads(trivium("describe", "--build", "--json").out)["build"]
    assert {"version", "isa", "threads", "compiler"} <= facts.keys()
