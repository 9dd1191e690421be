"""All that is to be said about a schema before it is used: what is enforced, what is not, and where.

Needs no model: the library checks a schema without a vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import llguidance

from trivium.base.errors import InvalidParameterError
from trivium.grammar.deep_stack import with_deep_stack
from trivium.grammar.keywords import KEYWORDS
from trivium.grammar.library import plain_reason, schema_source
from trivium.grammar.schemas import Problem, SchemaPlan, plan_schema

_MAX_TRIED = 500
"""Schemas within a schema that are tried alone to find the place of a problem."""


_CONTAINERS = ("$defs", "definitions", "$schema")
"""What schemas alone still need; so they do whatever is no keyword."""


class SchemaReport(NamedTuple):
    """What was found in a schema."""

    problems: list[Problem]
    """What cannot be enforced; empty where the schema is enforced in full."""
    enforced: dict[str, int]
    """Keywords that are, and how often they occur."""
    annotations: dict[str, int]
    """Keywords that say nothing about values."""
    unknown: list[str]
    """Pointers of keywords that mean nothing in any draft."""


def check_schema(schema: Any) -> SchemaReport:
    """Find out what of a schema can be enforced; of a bounded size, as `StructuredOutputs.validate` holds it."""
    plan = plan_schema(schema)
    problems = list(plan.problems)
    reason = with_deep_stack(lambda: _reason_against(plan.schema))
    if reason is not None:
        problems.append(Problem(with_deep_stack(lambda: _place_of(plan, reason)), reason))
    seen = Counter(name for node in plan.places.values() for name in node)
    return SchemaReport(problems, _of_role(seen, "enforced"), _of_role(seen, "annotation"), plan.unknown)


def _of_role(seen: Counter[str], role: str) -> dict[str, int]:
    return {name: seen[name] for name in sorted(seen) if name in KEYWORDS and KEYWORDS[name].role == role}


def _reason_against(schema: dict[str, Any]) -> str | None:
    """Return why the library refuses a schema, if it does."""
    if plan_schema(schema).problems:  # what is left of them is told already
        return None
    try:
        message = llguidance.LLMatcher.validate_grammar(schema_source(schema, any_whitespace=False))
    except InvalidParameterError as error:
        return str(error).partition(": ")[2]
    return plain_reason(message) or None


def _place_of(plan: SchemaPlan, reason: str) -> str:
    """Return the pointer of the innermost schema that is refused alone for the same reason."""
    around = {name: value for name, value in plan.schema.items() if name in _CONTAINERS or name not in KEYWORDS}
    inner_first = sorted(plan.places, key=lambda place: (_is_local(plan.places[place]), -place.count("/")))[:_MAX_TRIED]
    return next((place for place in inner_first if _reason_against({**around, **plan.places[place]}) == reason), "#")


def _is_local(node: Mapping[str, Any]) -> bool:
    """Return whether the problem is rather where a schema refers to."""
    return str(node.get("$ref", "")).startswith("#")
