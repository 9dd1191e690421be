"""Schemas that others wrote: what is drawn under their grammars satisfies them, and what does not is kept out.

The default tier tries every document of the public suite, and draws answers under a sample of its schemas and of a
benchmark's tools; `make full` draws under all of them, and has a real model answer some.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.grammars import TOKENIZER, grammar, walk
from support.schema_oracle import validator_of
from support.schema_suites import groups, tool_schemas
from support.schema_verdicts import compile_schema, draft_rows, verdicts
from support.server_process import smollm2_or_skip
from trivium.base.errors import InvalidParameterError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json-schema.md"
LET_IN = ("optional/content.json", r"optional/ecmascript-regex.json: ECMA 262 \S")
"""Why an invalid document is let in: content is an annotation since 2019-09, and U+FEFF is white only to ECMAScript."""


def sample(schemas: Sequence[Any], count: int) -> list[Any]:
    return random.Random(1).sample(list(schemas), count)  # noqa: S311  (a test's choice)


def assert_answers_satisfy(schemas: Sequence[Any], draws: int) -> None:
    """Draw answers with random weights under each schema; those that end must satisfy it, and most must end."""
    num_drawn = num_whole = num_compiled = 0
    for place, schema in enumerate(schemas):
        try:
            compiled = compile_schema(schema)
        except InvalidParameterError:
            continue
        num_compiled += 1
        validator = validator_of(schema)
        for draw in range(draws):
            matcher = compiled.start()
            text = TOKENIZER.decode(walk(matcher, seed=place * draws + draw, most=400))
            num_drawn += 1
            if matcher.is_accepting:
                num_whole += 1
                assert_satisfies(validator, text)
    assert num_compiled >= 0.5 * len(schemas)
    assert num_whole >= 0.9 * num_drawn, f"only {num_whole} of {num_drawn} answers came to an end"


def assert_satisfies(validator: Any, text: str) -> None:
    document = json.loads(text)
    try:
        validator.validate(document)
    except re.error:
        return  # a pattern that Python's expressions do not know, so that nothing can judge
    except jsonschema.ValidationError as error:
        raise AssertionError(f"{text} does not satisfy {validator.schema}: {error.message}") from None


def test_no_invalid_document_is_let_in_and_the_page_tells_how_many_valid_ones_are() -> None:
    found = verdicts(groups())
    assert [line for line in found.let_in if not line.startswith(LET_IN)] == []
    assert "another reason" not in found.reasons
    page = PAGE.read_text(encoding="utf-8")
    for row in draft_rows(found):
        assert row in page, row
    for reason, count in found.reasons.items():
        assert f"| {reason} | {count} |" in page, (reason, count)


def test_answers_under_sampled_schemas_satisfy_them() -> None:
    assert_answers_satisfy([group.schema for group in sample(groups(), 200)], draws=3)


def test_answers_under_sampled_tools_satisfy_them() -> None:
    assert_answers_satisfy(sample(tool_schemas(), 100), draws=2)


@pytest.mark.slow
def test_answers_under_all_schemas_satisfy_them() -> None:
    assert_answers_satisfy([group.schema for group in groups()], draws=10)


@pytest.mark.slow
def test_answers_under_all_tools_satisfy_them() -> None:
    assert_answers_satisfy(tool_schemas(), draws=3)


def test_all_tools_but_those_that_nothing_satisfies_are_enforced() -> None:
    refused = []
    for schema in sample(tool_schemas(), 400):
        try:
            grammar(json=schema)
        except InvalidParameterError as error:
            refused.append(str(error))
    assert [message for message in refused if "is unsatisfiable" not in message] == []


@pytest.mark.slow
def test_a_real_models_answers_satisfy_schemas_and_tools() -> None:
    from trivium import LLM, SamplingParams, StructuredOutputs  # noqa: PLC0415

    schemas = [*sample(tool_schemas(), 40), *(group.schema for group in sample(groups(), 60))]
    kept, params = [], []
    for place, schema in enumerate(schemas):
        try:
            compile_schema(schema)
        except InvalidParameterError:
            continue
        kept.append(schema)
        wanted = StructuredOutputs(json=schema)
        params.append(SamplingParams(max_tokens=250, temperature=1.0, seed=place, structured_outputs=wanted))
    with LLM(smollm2_or_skip()) as llm:
        outputs = llm.generate(["Answer in JSON about a trip to the sea.\n"] * len(kept), params)
    whole = [output.outputs[0] for output in outputs if output.outputs[0].finish_reason == "stop"]
    for schema, output in zip(kept, outputs, strict=True):
        if output.outputs[0].finish_reason == "stop":
            assert_satisfies(validator_of(schema), output.outputs[0].text)
    assert len(whole) >= 0.3 * len(kept), "schemas without bounds run to max_tokens, but not all"
