"""Structural tags: which texts they take, by format, and refusals with their places."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.grammars import grammar
from support.schema_verdicts import accepts
from trivium.base.errors import InvalidParameterError
from trivium.config.structural_tag import FORMATS
from trivium.config.structured import StructuredOutputs

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
WORD = {"type": "regex", "pattern": "[a-z/]+"}
TEXT = {"type": "any_text"}


def tag(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


CALLS = {
    "type": "triggered_tags",
    "triggers": ["<fn="],
    "tags": [tag("<fn=a>", NUMBER, "</fn>"), {"begin": "<fn=b>", "content": WORD, "end": ["</fn>", "!"]}],
}
SEPARATED = {"type": "tags_with_separator", "tags": [tag("(", NUMBER, ")"), tag("[", WORD, "]")], "separator": ", "}

CASES: list[tuple[dict[str, Any], str, str]] = [
    (CALLS, "|hi|hi <fn|<fn=a>12</fn>|x<fn=a>1</fn> é <fn=b>ab!<fn=b>c/d</fn>|<fn=b>ab</fn>!",
     "<fn=|<fn=a>|<fn=a>x</fn>|<fn=c>1</fn>|<fn=a>1</fn><fn=a>|<fn=b></fn>|<fn=a>1!"),
    ({**CALLS, "at_least_one": True}, "<fn=a>1</fn>|x<fn=a>1</fn>y", "|x|<fn="),
    ({**CALLS, "stop_after_first": True}, "x|<fn=a>1</fn>|x<fn=a>1</fn>", "<fn=a>1</fn>x|<fn=a>1</fn><fn=a>1</fn>"),
    ({**CALLS, "stop_after_first": True, "at_least_one": True}, "x<fn=a>1</fn>", "x|<fn=a>1</fn>x"),
    ({**CALLS, "excludes": ["bad"]}, "ba d<fn=a>1</fn>", "bad|a bad<fn=a>1</fn>|<fn=a>1</fn>bad"),
    (tag("<t>", TEXT, "</t>"), "<t></t>|<t>a\nb < /t></t>", "<t>|<t>a</t>b|a|<t></t></t>"),
    (tag("<t>", {**TEXT, "excludes": ["x"]}, ["</t>", "."]), "<t>a.|<t>a</t>", "<t>ax.|<t>a"),
    (tag("", WORD, "/x"), "a/x|aa//x", "/x|a|a/xb/x"),
    (tag("<t>", CALLS, "</t>"), "<t></t>|<t>x<fn=a>1</fn>y</t>", "<t>x<fn=</t>|<t>x</t>y|x"),
    (tag("<t>", {**CALLS, "stop_after_first": True}, "</t>"), "<t>y</t>|<t>y<fn=a>1</fn></t>", "<t><fn=a>1</fn>y</t>"),
    (SEPARATED, "|(1)|(1), [a]|[a], [b], (3)", "(1),|(1) (2)|, (1)|x"),
    ({**SEPARATED, "at_least_one": True}, "(1)", "|x"),
    ({**SEPARATED, "stop_after_first": True}, "|(1)", "(1), (1)"),
    ({**SEPARATED, "separator": ""}, "|(1)[a]", "(1), [a]"),
    (sequence(const("a"), NUMBER, const("b")), "a12b", "a12|ab|12b"),
    (sequence(TEXT, const("##"), NUMBER), "##1|x#y##1", "x|##|x#1|a##b##1"),
    (sequence(tag("<think>", TEXT, "</think>"), CALLS), "<think>a</think>b<fn=a>1</fn>", "b|<think>"),
    (sequence(TEXT, tag("<t>", NUMBER, "</t>"), TEXT), "a<t>1</t>b<t>", "a|a<t>b</t>"),
    ({"type": "or", "elements": [const("a"), NUMBER, tag("<", TEXT, ">")]}, "a|12|<x>", "b|ab|<x"),
    (tag("<", {"type": "or", "elements": [TEXT, NUMBER]}, ">"), "<x>|<12>", "<x"),
    ({"type": "optional", "content": const("ab")}, "|ab", "a|abab"),
    ({"type": "star", "content": const("ab")}, "|ab|abab", "a|aba"),
    ({"type": "plus", "content": const("ab")}, "ab|abab", "|a"),
    ({"type": "repeat", "min": 2, "max": 3, "content": const("ab")}, "abab|ababab", "ab|abababab"),
    ({"type": "grammar", "grammar": 'root ::= "x" y\ny ::= [0-9]'}, "x1", "x|y"),
    (tag("<", {"type": "grammar", "grammar": 'start: "x" y\ny: /[0-9]/', "syntax": "lark"}, ">"), "<x1>", "<x>|x1"),
    (tag('"\\\n', {"type": "regex", "pattern": 'a/b\\/"\n'}, "é😀"), '"\\\na/b/"\né😀', '"\\\na/b/"\n'),
    (TEXT, "|anything at all\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("root", "good", "bad"), CASES)
def test_what_a_format_takes(root: dict[str, Any], good: str, bad: str) -> None:
    compiled = grammar(structural_tag={"type": "structural_tag", "format": root})
    for text in good.split("|"):
        assert accepts(compiled, text), text
    for text in bad.split("|") if bad else ():
        assert not accepts(compiled, text), text


def test_every_format_has_a_case() -> None:
    seen = json.dumps([case[0] for case in CASES])
    assert [kind for kind in FORMATS if f'"type": "{kind}"' not in seen] == []


def test_the_old_spelling_and_texts_are_taken() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    old = {"structures": [{"begin": "<f=x>", "schema": schema, "end": "</f>"}], "triggers": ["<f="]}
    spelled = {"structures": [{**old["structures"][0], "schema": json.dumps(schema)}], "triggers": ["<f="]}
    for value in (old, {"type": "structural_tag", **old}, json.dumps(old), spelled):
        compiled = grammar(structural_tag=value)
        assert accepts(compiled, 'so: <f=x>{"n":3}</f> done')
        assert not accepts(compiled, "so: <f=x>{}</f>")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "must be an object"),
        ({"format": 5}, "it must have format, or structures and triggers"),
        ({"format": TEXT, "triggers": ["a"]}, "has format, triggers"),
        ({"structures": [{"begin": "<", "schema": {}}], "triggers": ["<"]}, "structures.0. must have begin"),
        ({"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["<"]}, "begin must start with one"),
        ({"format": {"type": "token", "token": 5}}, "format.type is 'token'; it must be one of const_string"),
        ({"format": {"type": "any_text", "max_tokens": 5}}, "format.max_tokens is not supported; any_text has"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "format.style must be json"),
        ({"format": {"type": "const_string"}}, "format.value is missing"),
        ({"format": sequence(TEXT, NUMBER)}, "format.elements.0. is free text; after it comes"),
        ({"format": {"type": "star", "content": TEXT}}, "format.content is free text"),
        ({"format": tag("<", {"type": "json_schema", "json_schema": {"not": {}}}, ">")}, "content.json_schema .*#/not"),
        ({"format": {"type": "repeat", "min": 3, "max": 2, "content": NUMBER}}, "format.min must be at most max"),
        ({"format": {"type": "regex", "pattern": "("}}, "invalid regex"),
        ({"format": {**CALLS, "triggers": ["<fn=", "<fn=a"]}}, "tags.0..begin must start with one of .*, not 2"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"structural_tag.*{message}"):
        grammar(structural_tag=value)


def test_sizes_are_bounded() -> None:
    many = sequence(*[const("a")] * 1100)
    deep: dict[str, Any] = TEXT
    for _ in range(70):
        deep = tag("<", deep, ">")
    for root, message in (
        (many, "more than 1024"),
        (deep, "nested at most 64"),
        (const("a" * 300_000), "262144 bytes"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            StructuredOutputs(structural_tag={"format": root}).validate()
