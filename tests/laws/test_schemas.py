"""Whatever a schema says, it is refused or what is drawn under it satisfies it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings

from support.drawn_schemas import schemas
from support.grammars import TOKENIZER, grammar, walk
from support.schema_oracle import validator_of
from trivium.base.errors import InternalError, InvalidParameterError
from trivium.grammar.schema_check import check_schema


def check(schema: dict[str, Any]) -> None:
    try:
        compiled = grammar(json=schema)
    except InvalidParameterError:
        event("refused")
        return
    validator = validator_of(schema)
    for seed in range(3):
        matcher = compiled.start()
        try:
            text = TOKENIZER.decode(walk(matcher, seed, most=250))
        except InternalError:
            event("dead end")
            continue
        if matcher.is_accepting:
            event("whole")
            error = next(iter(validator.iter_errors(json.loads(text))), None)
            assert error is None, f"{text} under {json.dumps(schema)}: {error}"


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(schema=schemas)
def test_drawn_answers_satisfy_drawn_schemas(schema: dict[str, Any]) -> None:
    check(schema)


@pytest.mark.slow
@settings(max_examples=4_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(schema=schemas)
def test_drawn_answers_satisfy_many_drawn_schemas(schema: dict[str, Any]) -> None:
    check(schema)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(schema=schemas)
def test_a_check_says_what_a_request_would_be_told(schema: dict[str, Any]) -> None:
    assert bool(check_schema(schema).problems) == is_refused(schema)


def is_refused(schema: dict[str, Any]) -> bool:
    try:
        grammar(json=schema)
    except InvalidParameterError:
        return True
    return False
