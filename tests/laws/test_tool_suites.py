"""Calls of a benchmark's tools: what is drawn under a dialect's grammar is read back as calls that fit the schemas."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from support.grammars import TOKENIZER, vocabulary, walk
from support.schema_oracle import validator_of
from support.schema_suites import tool_schemas
from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import ChatOutput, Tool
from trivium.grammar.constraint import ChatConstraint
from trivium.grammar.dialects import DIALECTS
from trivium.grammar.part_reader import PartReader
from trivium.grammar.parts import OutputPart, join_parts

NAMES = sorted(name for name, dialect in DIALECTS.items() if dialect.reads_calls)


def calls_of(wanted: ChatOutput, text: str) -> list[tuple[str, str]]:
    """Read the calls of an answer: names, and arguments as they were given out."""
    reader = PartReader(wanted)
    state, parts = reader.read(reader.start, text)
    found: dict[int, list[OutputPart]] = {}
    for part in join_parts([*parts, *reader.finish(state)]):
        if part.kind.startswith("tool_"):
            found.setdefault(part.call, []).append(part)
    return [(call[0].text, "".join(part.text for part in call[1:])) for call in found.values()]


def check_calls(schemas: list[dict[str, Any]], draws: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    dialects = cycle(NAMES)
    for place, schema in enumerate(schemas):
        wanted = ChatOutput(
            tool_dialect=next(dialects), tools=(Tool(name="f", parameters=schema, strict=True),), tool_choice="required"
        )
        try:
            compiled = vocabulary().compile(ChatConstraint(chat=wanted))
        except InvalidParameterError:
            counts["refused"] += 1
            continue
        validator = validator_of(schema)
        for draw in range(draws):
            matcher = compiled.start()
            text = TOKENIZER.decode(walk(matcher, place * draws + draw, most=500), skip_special_tokens=False)
            if not matcher.is_accepting:
                counts["cut short"] += 1
                continue
            counts["whole"] += 1
            calls = calls_of(wanted, text)
            assert calls, f"{wanted.tool_dialect}: no call in {text!r}"
            for name, arguments in calls:
                assert name == "f"
                error = next(iter(validator.iter_errors(json.loads(arguments))), None)
                assert error is None, f"{wanted.tool_dialect}: {text!r} {arguments} {schema}: {error}"
    return counts


def test_calls_of_sampled_tools_fit_their_schemas() -> None:
    schemas = random.Random(2).sample(tool_schemas(), 100)  # noqa: S311
    counts = check_calls(schemas, draws=1)
    assert counts["whole"] >= 50, counts


@pytest.mark.slow
def test_calls_of_many_tools_fit_their_schemas() -> None:
    counts = check_calls(list(tool_schemas()), draws=1)
    assert counts["whole"] >= 1500, counts
