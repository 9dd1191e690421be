"""Schemas inside grammars are refused and settled like any other."""

from __future__ import annotations

import pytest

from support.grammars import grammar
from support.schema_verdicts import accepts
from trivium.base.errors import InvalidParameterError


def test_a_schema_inside_a_grammar_is_settled() -> None:
    rules = (
        'start: "<" a ">" b',
        'a: %json {"type": "array", "items": {"format": "date"}}',
        'b: %json\n {"type":"null"}',
    )
    compiled = grammar(grammar="\n".join(rules))
    assert accepts(compiled, '<["2024-02-29"]>null')
    assert not accepts(compiled, '<["2023-02-29"]>null')
    assert not accepts(compiled, "<[ ]>null")


def test_whitespace_inside_a_grammar_is_bounded_too() -> None:
    flexible = grammar(grammar='start: %json {"type": "array", "x-guidance": {"whitespace_flexible": true}}')
    assert accepts(flexible, f"[{' ' * 20}]")
    assert not accepts(flexible, f"[{' ' * 21}]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('start: %json {"not": {}, "x-guidance": {"lenient": true}}', "#/not"),
        ('start: %json {"type": }', "no JSON"),
        ('start: "a" | %json {"items": {"uniqueItems": true}} "b"', "#/items/uniqueItems"),
    ],
)
def test_what_cannot_be_enforced_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        grammar(grammar=text)
    with pytest.raises(InvalidParameterError, match=message):
        grammar(structural_tag={"format": {"type": "grammar", "grammar": text, "syntax": "lark"}})


def test_a_temperature_inside_a_grammar_is_refused() -> None:
    for text in ("start[temperature=0.7]: /a+/", 'start: a\na[capture, temperature = 1]: "b"'):
        with pytest.raises(InvalidParameterError, match="grammar sets a temperature"):
            grammar(grammar=text)
    grammar(grammar='start: "a[temperature=1]"')


def test_other_texts_stay_as_they_are() -> None:
    assert accepts(grammar(grammar='start: "%json [1]" /x/'), "%json [1]x")
