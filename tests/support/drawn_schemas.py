"""Random JSON Schemas, of the keywords that are enforced and of some that are not; most can be satisfied."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "hello", 'q"\n', "é", "x1")
PATTERNS = ("^a", "b$", "^[a-c]{1,3}$", "\\d", "^(hello|he)+$", "^[^a]*$", "é|w", "^$", ".")
FORMATS = (
    "date",
    "time",
    "date-time",
    "uuid",
    "ipv4",
    "email",
    "hostname",
    "uri",
    "duration",
    "ipv6",
    "password",
    "iri",
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-50, 50), st.sampled_from([0.5, -1.25, 100.0]), st.sampled_from(NAMES)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=5,
)
small = st.integers(0, 4)
numbers = st.one_of(st.integers(-20, 20), st.sampled_from([-2.5, 0.1, 7.75, 1e3]))


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keywords."""
    return st.fixed_dictionaries({}, optional=keywords)


def typed(name: str, keywords: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return keywords.map(lambda given: {"type": name, **given})


texts = typed(
    "string",
    some(minLength=small, maxLength=st.integers(2, 9), pattern=st.sampled_from(PATTERNS))
    | some(format=st.sampled_from(FORMATS), maxLength=st.integers(8, 40)),
)
bounds = some(
    minimum=numbers, maximum=numbers, exclusiveMinimum=numbers, exclusiveMaximum=numbers,
    multipleOf=st.sampled_from([1, 2, 3, 7, 0.5, 0.1]),
)  # fmt: skip
flats = st.one_of(
    texts,
    typed("integer", bounds),
    typed("number", bounds),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["null", "integer"]}, {}, True]),
    st.fixed_dictionaries({"enum": st.lists(documents, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": documents}),
)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=3)
    arrays = typed("array", some(items=inner, prefixItems=branches, minItems=small, maxItems=st.integers(1, 5)))
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    objects = typed(
        "object",
        some(
            properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            required=names,
            additionalProperties=st.just(False) | inner,
            patternProperties=st.dictionaries(st.sampled_from(("^p", "^q[0-9]$")), inner, max_size=2),
            minProperties=st.integers(0, 3),
            maxProperties=st.integers(1, 4),
        ),
    )
    joined = st.sampled_from(["anyOf", "allOf", "oneOf"]).flatmap(lambda name: branches.map(lambda each: {name: each}))
    refused = st.sampled_from([{"not": {}}, {"uniqueItems": True}, {"if": {}, "then": False}, {"contains": {}}])
    beside = st.tuples(inner, joined).map(lambda both: {**(both[0] if isinstance(both[0], dict) else {}), **both[1]})
    return st.one_of(arrays, objects, objects, joined, beside, st.just({"$ref": "#/$defs/d"}), refused)


trees = st.recursive(flats, _larger, max_leaves=6)
schemas = st.tuples(trees, trees).map(
    lambda both: {**(both[0] if isinstance(both[0], dict) else {}), "$defs": {"d": both[1]}}
)
"""Schemas that may refer to a definition, and whose definition may refer to itself."""
