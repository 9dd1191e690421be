"""Unit tests of `trivium.grammar.part_reader`: what models of each dialect write, and what that means."""

from __future__ import annotations

import pytest

from support.dialects import read, tools
from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import ChatOutput
from trivium.grammar.part_reader import PartReader

TOOLS = tools("f", "g", city={"type": "string"}, n={"type": "integer"}, items={"type": "array"})


def say(text: str, calls: str | None = None, thinks: str | None = None, **fields: object) -> list[tuple[str, str]]:
    wanted = ChatOutput(tool_dialect=calls, reasoning_dialect=thinks, tools=TOOLS, **fields)  # type: ignore[arg-type]
    return [(part.kind, part.text) for part in read(wanted, [text])]


def call(name: str, arguments: str) -> list[tuple[str, str]]:
    return [("tool_name", name), ("tool_arguments", arguments)]


F, G = call("f", '{"n": 1}'), call("g", "{}")

CALLS = {
    "hermes": (
        '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call>'
    ),
    "llama3_json": '{"name": "f", "parameters": {"n": 1}}; {"name": "g", "parameters": {}}',
    "llama4_pythonic": "<|python_start|>[f(n=1), g()]<|python_end|>",
    "pythonic": "[f(n=1), g()]",
    "mistral": '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]g[ARGS]{}',
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"n": 1}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="n" string="false">1</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"n": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
    "glm45": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=g>\n</function>\n</tool_call>"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">1</parameter>\n</invoke>\n'
        '<invoke name="g">\n</invoke>\n</minimax:tool_call>'
    ),
    "functiongemma": (
        "<start_function_call>call:f{n:1}<end_function_call><start_function_call>call:g{}<end_function_call>"
    ),
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]',
    "olmo3": "<function_calls>\nf(n=1)\ng()\n</function_calls>",
    "lfm2": "<|tool_call_start|>[f(n=1), g()]<|tool_call_end|>",
    "jamba": '<tool_calls>[\n  {"name": "f", "arguments": {"n": 1}},\n  {"name": "g", "arguments": {}}\n]</tool_calls>',
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_a_dialect(name: str) -> None:
    assert say(CALLS[name], name) == [*F, *G]
    if name not in {"llama3_json", "pythonic"}:
        assert say(f"Let me look.\n\n{CALLS[name]}\n", name) == [("content", "Let me look."), *F, *G]


def test_the_older_list_of_mistral() -> None:
    text = '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, {"arguments": {}, "name": "g"}]'
    assert say(text, "mistral") == [*F, *G]


def test_ids_that_mistral_makes_up_are_passed_over() -> None:
    text = '[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{"n": 1}[TOOL_CALLS]g[CALL_ID]f6G7h8I9j[ARGS]{}'
    assert say(text, "mistral") == [*F, *G]
    assert say("[TOOL_CALLS]f[CALL_ID][ARGS]{}", "mistral") == [("content", "[TOOL_CALLS]f[CALL_ID][ARGS]{}")]


def test_messages_with_headers() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>'
    )
    assert say(text, "openai", "openai_gptoss") == [("reasoning", "hm"), ("content", "Wait."), *F]
    swapped = '<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"n": 1}'
    assert say(swapped, "openai") == F
    assert say("<|channel|>final<|message|>Hi.<|return|>", "openai") == [("content", "Hi.")]
    assert say("<|channel|>final<|mess", "openai") == []


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nHi.", [("reasoning", "hm"), ("content", "Hi.")]),
        ("qwen3", "Hi. <think> is a mark.", [("content", "Hi. <think> is a mark.")]),
        ("qwen3", "<think>hm</think>a</think>b<think>c", [("reasoning", "hm"), ("content", "a</think>b<think>c")]),
        ("qwen3", "<think>hm", [("reasoning", "hm")]),
        ("deepseek_r1", "hm\n</think>\nHi.", [("reasoning", "hm"), ("content", "Hi.")]),
        ("deepseek_r1", "<think>\nhm</think>Hi.", [("reasoning", "hm"), ("content", "Hi.")]),
        ("mistral", "[THINK]hm[/THINK]Hi.", [("reasoning", "hm"), ("content", "Hi.")]),
        (
            "granite",
            "Here is my thought process: hm\n\nHere is my response: Hi.",
            [("reasoning", " hm"), ("content", " Hi.")],
        ),
        ("qwen3", "<think>\n\n</think>\n\n\n Hi.", [("content", "\n Hi.")]),
        ("qwen3", "  ", [("content", "  ")]),
    ],
)
def test_reasoning_of_a_dialect(name: str, text: str, parts: list[tuple[str, str]]) -> None:
    assert say(text, None, name) == parts


def test_a_call_ends_reasoning_where_the_model_leaves_its_end_out() -> None:
    assert say(f"<think>hm {CALLS['kimi_k2']}", "kimi_k2", "kimi_k2") == [("reasoning", "hm"), *F, *G]
    text = f"<think>hm {CALLS['hermes']}"
    assert say(text, "hermes", "qwen3") == [("reasoning", text.removeprefix("<think>"))]


def test_a_mark_may_begin_as_a_call_without_one_does() -> None:
    assert say("[THINK]hm[/THINK][f(n=1)]", "pythonic", "mistral") == [("reasoning", "hm"), *F]


def test_a_prompt_that_opened_reasoning() -> None:
    assert say("hm</think>Hi.", None, "qwen3", starts_in_reasoning=True) == [("reasoning", "hm"), ("content", "Hi.")]


XML = """<tool_call>
<function=f>
<parameter=city>
12
</parameter>
<parameter=z>
[1]
</parameter>
<parameter=items>
no list
</parameter>
</function>
</tool_call>"""
GEMMA = (
    '<start_function_call>call:f{city:<escape>a,}"<<escape>,items:[<escape>x<escape>,2,{k:true}]}<end_function_call>'
)
HELD = '<tool_call>{"name": "f", "arguments": {"n": 1}}'


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("hermes", "<tool_call>oops</tool_call> x", [("content", "<tool_call>oops</tool_call> x")]),
        ("hermes", "a <tool_call", [("content", "a <tool_call")]),
        ("hermes", '<tool_call>{"arguments": {}}', [("content", '<tool_call>{"arguments": {}}')]),
        ("hermes", f"{HELD} x", [*F, ("content", "x")]),
        ("hermes", HELD[:-2], call("f", '{"n": 1')),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"n\\": 1}"}</tool_call>', F),
        ("hermes", '<tool_call>{"id": [1], "name": "f", "arguments": {"n": 1}, "x": null}</tool_call>', F),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"city": "a\nb"}}', call("f", '{"city": "a\\nb"}')),
        ("hermes", f"<tool_call>{CALLS['hermes']}", [("content", "<tool_call>"), *F, *G]),
        ("llama3_json", '{"name": "Bob", "parameters": {}}', [("content", '{"name": "Bob", "parameters": {}}')]),
        ("llama3_json", '{"n": 1}', [("content", '{"n": 1}')]),
        ("pythonic", "[1] says so", [("content", "[1] says so")]),
        ("pythonic", "[f(1)]", [("content", "[f(1)]")]),
        (
            "pythonic",
            "[f(n=None, items=[True, (1, 'a'), {'k': -1.5e3,}], city=\"it's\\n\\x41\")]",
            call("f", '{"n": null, "items": [true, [1, "a"], {"k": -1.5e3}], "city": "it\'s\\nA"}'),
        ),
        (
            "qwen3_coder",
            XML,
            call("f", '{"city": "12", "z": [1], "items": "no list"}'),
        ),
        (
            "functiongemma",
            GEMMA,
            call("f", '{"city": "a,}\\"<", "items": ["x", 2, {"k": true}]}'),
        ),
        ("deepseek_v31", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜>', F),
    ],
)
def test_what_is_odd(name: str, text: str, parts: list[tuple[str, str]]) -> None:
    assert say(text, name) == parts


def test_a_value_is_what_the_model_says_it_is() -> None:
    said = [
        f'<｜DSML｜parameter name="{name}" string="{kind}">{value}</｜DSML｜parameter>'
        for name, kind, value in (("n", "true", "1"), ("city", "false", "[2]"), ("items", "true", "[3]"))
    ]
    text = f'<｜DSML｜tool_calls><｜DSML｜invoke name="f">{"".join(said)}</｜DSML｜invoke></｜DSML｜tool_calls>'
    assert say(text, "deepseek_v4") == call("f", '{"n": "1", "city": [2], "items": "[3]"}')


def test_no_calls_are_read_where_none_are_wanted() -> None:
    text = CALLS["hermes"]
    assert say(text, "hermes", tool_choice="none") == [("content", text)]


def test_bound_content_goes_on_to_the_end() -> None:
    wanted = ChatOutput(tool_dialect="hermes", tools=TOOLS)
    text = '{"a": "<tool_call>"} '
    assert [part.text for part in read(wanted, list(text), content_is_bound=True)] == [text]
    called = read(wanted, list(CALLS["hermes"]), content_is_bound=True)
    assert [part.text for part in called if part.kind == "tool_name"] == ["f", "g"]


def test_what_no_row_says_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="reasoning_dialect is 'hermes'; it must be one of deepseek_r1"):
        PartReader(ChatOutput(reasoning_dialect="hermes"))
    with pytest.raises(InvalidParameterError, match="never in one answer"):
        PartReader(ChatOutput(reasoning_dialect="qwen3", tool_dialect="openai"))
