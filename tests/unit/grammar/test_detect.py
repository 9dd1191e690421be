"""Which dialect a template speaks."""

from __future__ import annotations

import pytest

from support.chat_templates import CHOOSY, HERMES, REASONING_HERMES
from trivium.base.errors import ConfigError
from trivium.grammar.detect import ModelDialects, choose_dialects, detect
from trivium.grammar.dialects import DIALECTS

SPOKEN = [
    ("<|im_start|><tool_call>\n", "hermes", None),
    ("<tool_call> '</think>' in content", "hermes", "qwen3"),
    ("<tool_call><function=f><parameter=a>", "qwen3_coder", None),
    ("<think><tool_call>f<arg_key>a</arg_key></think>", "glm45", "glm45"),
    ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", None),
    ("[THINK][TOOL_CALLS]f[ARGS]", "mistral", "mistral"),
    ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json", "deepseek_v3", None),  # noqa: RUF001
    ("<｜tool▁calls▁begin｜>f<｜tool▁sep｜></think>", "deepseek_v31", "deepseek_v31"),  # noqa: RUF001
    ("<|start_header_id|>assistant '\"parameters\": '", "llama3_json", None),
    ("<|start_header_id|>[func_name1(params_name1=1)] '\"parameters\"'", "pythonic", None),
    ("<|channel|>analysis<|message|><|channel|>commentary", "openai", "openai"),
    ("<|tool_calls_section_begin|>", "kimi_k2", None),
    ("<|tool_calls_section_begin|>{{ m.split('</think>') }}", "kimi_k2", "kimi_k2"),
    ("<｜DSML｜function_calls>", "deepseek_v32", None),  # noqa: RUF001
    ("<｜DSML｜tool_calls></think>", "deepseek_v4", "deepseek_v4"),  # noqa: RUF001
    ("<start_function_call>call:f{}<end_function_call>", "functiongemma", None),
    ("<minimax:tool_call><think>", "minimax_m2", "minimax_m2"),
    ("<seed:tool_call><function=f><seed:think>", "seed_oss", "seed_oss"),
    ("<|start_of_role|><|tool_call|>", "granite", None),
    ("functools[{}]", "phi4_mini_json", None),
    ("developed by Salesforce xLAM team. make calls in a single JSON array", "xlam", None),
    ("<|im_start|>user", None, None),
    ("", None, None),
]


@pytest.mark.parametrize(("source", "tools", "reasoning"), SPOKEN)
def test_marks_of_a_template_tell_its_dialects(source: str, tools: str | None, reasoning: str | None) -> None:
    assert detect(source) == ModelDialects(tools=tools, reasoning=reasoning)


def test_every_dialect_that_is_found_is_one() -> None:
    for _, tools, reasoning in SPOKEN:
        assert tools is None or DIALECTS[tools].reads_calls
        assert reasoning is None or DIALECTS[reasoning].reads_reasoning


def test_the_tests_own_templates_speak_as_they_say() -> None:
    assert detect(HERMES) == ModelDialects(tools="hermes")
    assert detect(REASONING_HERMES) == ModelDialects(tools="hermes", reasoning="qwen3")
    assert detect(CHOOSY) == ModelDialects()


def test_names_go_before_what_is_found() -> None:
    chosen = choose_dialects([REASONING_HERMES], tool_call_parser="mistral", reasoning_parser="none")
    assert chosen == ModelDialects(tools="mistral")
    assert choose_dialects([], tool_call_parser="auto", reasoning_parser="deepseek_r1").reasoning == "deepseek_r1"


@pytest.mark.parametrize(
    ("tool_call_parser", "reasoning_parser", "told"),
    [
        ("hermess", "auto", "did you mean hermes"),
        ("auto", "qwen", "did you mean"),
        ("qwen3", "auto", "tool_call_parser"),
        ("auto", "hermes", "reasoning_parser"),
    ],
)
def test_other_names_are_refused_with_the_known_ones(tool_call_parser: str, reasoning_parser: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        choose_dialects([], tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)
