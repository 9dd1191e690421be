"""A JSON Schema as the library is given it: refused by its place, or without what asks for nothing.

::

    schema of the request ─ plan_schema ─► schema for the library ─► grammar
                                └─► problems: pointer and reason of each

The library refuses most of what it cannot enforce, without a place, and passes over some of it: options of its own that
a schema may hold, days that do not exist, names that a document gives twice. What comes out of here means the same as
what went in, or less where no grammar can say it exactly (`INTEGER_FORMATS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import unquote

from trivium.base.errors import InvalidParameterError
from trivium.grammar.keywords import (
    BOUNDS,
    COUNTS,
    EXACT_INTEGER,
    FORMAT_PATTERNS,
    HINT_FORMATS,
    IDLE,
    IN_PLACE,
    INTEGER_FORMATS,
    KEYWORDS,
    LIBRARY_FORMATS,
)
from trivium.grammar.property_names import allowed_names

_MAX_OPTIONAL = 1000
"""Optional names of an object: any of them may come next, and the mask of more takes longer than a forward pass."""
_MAX_TOLD = 5
"""Problems that an error tells."""
_NOT_ONLY = re.compile(r"\^\(\?!\^\[([^\]\\^]+)\]\*\$\)(.*)", re.DOTALL)
_LIBRARY_OPTIONS = "x-guidance"
"""A key by which a schema would change what the library enforces."""


class Problem(NamedTuple):
    """Something in a schema that cannot be enforced."""

    pointer: str
    """Where: a JSON pointer, as the fragment of a URI (RFC 6901, section 6)."""
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.reason}"


@dataclass(slots=True)
class SchemaPlan:
    """What was found out about a schema."""

    whole: Any
    """As it came."""
    schema: dict[str, Any]
    """What the library is given; without what the problems are about."""
    problems: list[Problem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Pointers of keywords that mean nothing in any draft; they are passed over."""
    places: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Every schema in it, as it will be given, by pointer."""


def library_schema(schema: Any) -> dict[str, Any]:
    """Return the schema to give to the library.

    Raises:
        InvalidParameterError: Something in it cannot be enforced; the message has pointers and reasons.
    """
    plan = plan_schema(schema)
    if plan.problems:
        told = "; ".join(map(str, plan.problems[:_MAX_TOLD]))
        more = len(plan.problems) - _MAX_TOLD
        rest = f"; and {more} more" if more > 0 else ""
        raise InvalidParameterError(f"json cannot be enforced: {told}{rest}", param="json")
    return plan.schema


def plan_schema(schema: Any) -> SchemaPlan:
    """Look at every schema within a schema, whose depth is bounded."""
    plan = SchemaPlan(schema, {})
    if schema is False:
        plan.problems.append(Problem("#", "no document satisfies the schema false"))
    if not isinstance(schema, Mapping):
        return plan
    if "draft-03" in str(schema.get("$schema")):
        plan.problems.append(Problem("#/$schema", "draft 3 is not supported; drafts 4 to 2020-12 are"))
    plan.schema = _planned(schema, "#", plan)
    _plan_what_refs_reach(plan)
    plan.problems += _endless(plan)
    return plan


def _planned(node: Any, place: str, plan: SchemaPlan) -> Any:
    if not isinstance(node, Mapping):
        return node
    result: dict[str, Any] = {}
    plan.places[place] = result
    for name, value in node.items():
        keyword = KEYWORDS.get(name)
        pointer = f"{place}/{_escaped(name)}"
        if keyword is None:
            plan.unknown.append(pointer)
            if name != _LIBRARY_OPTIONS:
                result[name] = deepcopy(value)
        elif keyword.role == "refused":
            _refuse_unless_idle(name, node, pointer, plan)
        else:
            result[name] = _inner(keyword.holds, value, pointer, plan)
    _settle_counts(result)
    _settle_pattern(result)
    _settle_format(result, place, plan)
    _settle_unevaluated(node, result, place, plan)
    _settle_names(node, result, plan)
    _check_min_properties(result, place, plan)
    _check_optional(result, place, plan)
    _check_bounds(result, place, plan)
    return result


def _inner(holds: str, value: Any, pointer: str, plan: SchemaPlan) -> Any:
    if holds == "named" and isinstance(value, Mapping):
        return {name: _planned(each, f"{pointer}/{_escaped(name)}", plan) for name, each in value.items()}
    if holds in {"list", "schema"} and isinstance(value, list):  # before 2020-12, items may be a list
        return [_planned(each, f"{pointer}/{index}", plan) for index, each in enumerate(value)]
    return _planned(value, pointer, plan) if holds == "schema" else value


def _refuse_unless_idle(name: str, node: Mapping[str, Any], pointer: str, plan: SchemaPlan) -> None:
    is_idle = IDLE.get(name)
    if is_idle is not None and is_idle(node[name], node):
        return
    if name == "unevaluatedProperties" and not any(each in node for each in IN_PLACE):
        return  # then it says what additionalProperties says; see _settle_unevaluated
    if name == "propertyNames" and _settled_names(node, plan) is not None:
        return
    plan.problems.append(Problem(pointer, f"the keyword {name!r} is not supported"))


def _settle_counts(node: dict[str, Any]) -> None:
    for name in COUNTS.intersection(node):
        if isinstance(node[name], float) and node[name].is_integer():
            node[name] = int(node[name])


def _settle_pattern(node: dict[str, Any]) -> None:
    """Write "not of these letters alone" without look-around, as a second pattern; Pydantic's decimals say it so."""
    found = _NOT_ONLY.fullmatch(node["pattern"]) if isinstance(node.get("pattern"), str) else None
    if found is not None:
        node["pattern"] = f"^{found[2]}"
        _also(node, {"pattern": f"[^{found[1]}]"})


def _settle_format(node: dict[str, Any], place: str, plan: SchemaPlan) -> None:
    """Turn a format into what the library enforces exactly, or refuse it; one of another type asks for nothing."""
    wanted = node.get("format")
    if not isinstance(wanted, str):
        return
    types = _types_of(node)
    if wanted in INTEGER_FORMATS and types <= {"integer", "null"}:
        least, most = INTEGER_FORMATS[wanted]
        node.pop("format")
        _also(node, {"minimum": least, "maximum": most})
    elif "string" not in types or wanted in HINT_FORMATS:
        node.pop("format")
    elif wanted in FORMAT_PATTERNS:
        node.pop("format")
        _also(node, {"pattern": FORMAT_PATTERNS[wanted]})
    elif wanted not in LIBRARY_FORMATS:
        node.pop("format")
        plan.problems.append(Problem(f"{place}/format", f"the format {wanted[:60]!r} is not supported"))


def _types_of(node: Mapping[str, Any]) -> set[str]:
    types = node.get("type", ["string", "integer", "number"])
    return {str(each) for each in types} if isinstance(types, list) else {str(types)}


def _also(node: dict[str, Any], keywords: Mapping[str, Any]) -> None:
    """Add keywords to a schema that may have some of them already."""
    if not any(name in node for name in keywords):
        node.update(keywords)
    elif isinstance(node.get("allOf", []), list):
        node["allOf"] = [*node.get("allOf", ()), dict(keywords)]


def _settle_unevaluated(node: Mapping[str, Any], result: dict[str, Any], place: str, plan: SchemaPlan) -> None:
    value = node.get("unevaluatedProperties")
    if value in (None, True, {}) or any(each in node for each in IN_PLACE) or "additionalProperties" in node:
        return
    result["additionalProperties"] = _planned(value, f"{place}/unevaluatedProperties", plan)


def _settle_names(node: Mapping[str, Any], result: dict[str, Any], plan: SchemaPlan) -> None:
    """Turn a schema of free names into the names, or the pattern of names, that there may be."""
    settled = _settled_names(node, plan)
    if settled is None:
        return
    inner = result.get("additionalProperties", True)
    names, pattern = settled
    if names is not None:
        result["properties"] = dict.fromkeys(names, inner)
    else:
        result["patternProperties"] = {pattern: inner}
    result["additionalProperties"] = False


def _settled_names(node: Mapping[str, Any], plan: SchemaPlan) -> tuple[list[str] | None, str] | None:
    wanted = node.get("propertyNames")
    if isinstance(wanted, Mapping) and wanted.keys() == {"$ref"}:
        target = _target(wanted)
        wanted = None if target == "#" else _at(plan.whole, target)
    is_alone = "properties" not in node and "patternProperties" not in node
    return allowed_names(wanted) if is_alone and isinstance(wanted, Mapping) else None


def _check_min_properties(node: dict[str, Any], place: str, plan: SchemaPlan) -> None:
    """Refuse a number of properties that a name given twice could pretend to reach.

    Names that the schema lists are given once; of the others one surely counts.
    """
    least, required = node.get("minProperties"), node.get("required")
    is_open = node.get("additionalProperties") is not False or bool(node.get("patternProperties"))
    num_sure = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, int) and is_open and least > num_sure + 1:
        reason = (
            f"minProperties {least} cannot be enforced where further names are allowed (additionalProperties: false)"
        )
        plan.problems.append(Problem(f"{place}/minProperties", reason))
        del node["minProperties"]


def _check_optional(node: Mapping[str, Any], place: str, plan: SchemaPlan) -> None:
    names, required = node.get("properties"), node.get("required")
    if not isinstance(names, Mapping):
        return
    num_optional = len(names.keys() - set(map(str, required))) if isinstance(required, list) else len(names)
    if num_optional > _MAX_OPTIONAL:
        reason = f"{num_optional} names are optional; at most {_MAX_OPTIONAL} may be (list others in required)"
        plan.problems.append(Problem(f"{place}/properties", reason))


def _check_bounds(node: dict[str, Any], place: str, plan: SchemaPlan) -> None:
    """Refuse integers that the library would round."""
    for name in sorted(BOUNDS.intersection(node)):
        if isinstance(node[name], int) and abs(node[name]) > EXACT_INTEGER:
            reason = f"{name} {node[name]} is not supported; at most {EXACT_INTEGER} is exact"
            plan.problems.append(Problem(f"{place}/{name}", reason))
            del node[name]


def _plan_what_refs_reach(plan: SchemaPlan) -> None:
    """Look also at schemas that stand where only a reference finds them, such as `#/components/schemas`."""
    waiting = list(plan.places.values())
    while waiting:
        pointer = _target(waiting.pop())
        parent, _, name = pointer.rpartition("/")
        above, node = _at(plan.schema, parent), _at(plan.schema, pointer)
        if isinstance(node, Mapping) and isinstance(above, (dict, list)) and pointer not in plan.places:
            num_known = len(plan.places)
            key: Any = int(name) if isinstance(above, list) else _unescaped(name)
            above[key] = _planned(node, pointer, plan)
            waiting += list(islice(plan.places.values(), num_known, None))


def _target(node: Mapping[str, Any]) -> str:
    """Return the pointer that a schema refers to; that of the whole where it refers to none."""
    ref = node.get("$ref")
    return unquote(ref) if isinstance(ref, str) and ref.startswith("#/") else "#"


def _endless(plan: SchemaPlan) -> list[Problem]:
    """Return references that lead back to themselves without a step into the value, which the drafts leave undefined.

    A schema is settled where all that it refers to in place is.
    """
    waits_for = {place: set(_in_place(place, node)) & plan.places.keys() for place, node in plan.places.items()}
    waiting_for: dict[str, list[str]] = {}
    for place, others in waits_for.items():
        for other in others:
            waiting_for.setdefault(other, []).append(place)
    settled = [place for place, others in waits_for.items() if not others]
    while settled:
        done = settled.pop()
        for place in waiting_for.get(done, ()):
            waits_for[place].discard(done)
            if not waits_for[place]:
                settled.append(place)
    refs = sorted(place for place, others in waits_for.items() if others and "$ref" in plan.places[place])
    return [Problem(f"{place}/$ref", "the reference leads back to itself") for place in refs]


def _in_place(place: str, node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pointers of the schemas that a schema lays upon the same value."""
    if str(node.get("$ref", "")).startswith("#"):
        yield _target(node)
    for name in IN_PLACE:
        if isinstance(node.get(name), list):
            yield from (f"{place}/{name}/{index}" for index in range(len(node[name])))


def _at(root: Any, pointer: str) -> Any:
    found = root
    for name in pointer.split("/")[1:]:
        if isinstance(found, Mapping):
            found = found.get(_unescaped(name))
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")
