"""What a structural tag may say: free text with constrained spans, in vLLM's and SGLang's words, old and new.

::

    {"structures": [{"begin", "schema", "end"}, …], "triggers": […]}       the old spelling
    {"format": {"type": "triggered_tags", "triggers": […], "tags": […]}}   the new one, into which the old is turned

A format is one of `FORMATS`; what it holds is told by its fields. This module knows shapes alone: whether a schema or
grammar in it can be enforced is found out when it is compiled.
Source: xgrammar's structural tags (github.com/mlc-ai/xgrammar), which both servers take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from trivium.base.errors import InvalidParameterError

MAX_FORMATS = 1024
"""Most formats in a structural tag, each tag and each of their contents counted."""
MAX_REPEATS = 1000


class FormatField(NamedTuple):
    """A field of a format."""

    is_right: Callable[[Any], bool]
    meaning: str
    is_required: bool = True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_some_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_some_text, value))


def _is_end(value: Any) -> bool:
    return _is_text(value) or _are_texts(value)


def _are_formats(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_REPEATS


_TEXT = FormatField(_is_text, "a text")
_SOME_TEXT = FormatField(_is_some_text, "a text that is not empty")
_TEXTS = FormatField(_are_texts, "a list of texts that are not empty")
_SCHEMA = FormatField(lambda value: isinstance(value, (Mapping, bool)), "a JSON Schema")
_FORMAT = FormatField(lambda value: isinstance(value, Mapping), "a format")
_SEVERAL = FormatField(_are_formats, "a list of formats, at least one")
_TAGS = FormatField(
    lambda value: _are_formats(value) and all(each.get("type", "tag") == "tag" for each in value),
    "a list of tags, at least one",
)
_SWITCH = FormatField(lambda value: isinstance(value, bool), "true or false", is_required=False)
_EXCLUDES = FormatField(
    lambda value: value == [] or _are_texts(value), "a list of texts that are not empty", is_required=False
)
_COUNT = FormatField(_is_count, f"a number from 0 to {MAX_REPEATS}")

FORMATS: Mapping[str, Mapping[str, FormatField]] = {
    "const_string": {"value": _SOME_TEXT},
    "json_schema": {
        "json_schema": _SCHEMA,
        "style": FormatField(lambda value: value == "json", "json", is_required=False),
    },
    "any_text": {"excludes": _EXCLUDES},
    "regex": {"pattern": _SOME_TEXT},
    "grammar": {
        "grammar": _SOME_TEXT,
        "syntax": FormatField(lambda value: value in {"ebnf", "lark"}, "ebnf or lark", is_required=False),
    },
    "sequence": {"elements": _SEVERAL},
    "or": {"elements": _SEVERAL},
    "tag": {"begin": _TEXT, "content": _FORMAT, "end": FormatField(_is_end, "a text, or a list of texts")},
    "triggered_tags": {
        "triggers": _TEXTS,
        "tags": _TAGS,
        "at_least_one": _SWITCH,
        "stop_after_first": _SWITCH,
        "excludes": _EXCLUDES,
    },
    "tags_with_separator": {"tags": _TAGS, "separator": _TEXT, "at_least_one": _SWITCH, "stop_after_first": _SWITCH},
    "optional": {"content": _FORMAT},
    "star": {"content": _FORMAT},
    "plus": {"content": _FORMAT},
    "repeat": {"min": _COUNT, "max": _COUNT, "content": _FORMAT},
}
"""Fields of every format that is taken, besides `type`."""


def format_of(value: Any) -> dict[str, Any]:
    """Return the format that a structural tag holds, in the new spelling.

    Args:
        value: The structural tag: an object, or its text.

    Raises:
        InvalidParameterError: It is not well-formed, or holds what is not taken; the message says where.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_tag("", f"is no JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise bad_tag("", "must be an object with format, or with structures and triggers")
    given = {name: each for name, each in value.items() if name != "type"}
    if given.keys() == {"structures", "triggers"}:
        root = _from_old_spelling(given["structures"], given["triggers"])
    elif given.keys() == {"format"} and isinstance(given["format"], Mapping):
        root = dict(given["format"])
    else:
        raise bad_tag("", f"has {', '.join(given) or 'nothing'}; it must have format, or structures and triggers")
    for count, (place, found) in enumerate(formats_in(root)):
        if count >= MAX_FORMATS:
            raise bad_tag("", f"holds more than {MAX_FORMATS} formats")
        _check_format(place, found)
    return root


def formats_in(root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every format within a format with its place, outer ones first; a tag in a list needs no type."""
    waiting: list[tuple[str, Mapping[str, Any]]] = [("format", root)]
    while waiting:
        place, found = waiting.pop()
        yield place, found
        inner = [("content", found["content"])] if isinstance(found.get("content"), Mapping) else []
        for name in ("elements", "tags"):
            if isinstance(found.get(name), list):
                inner += [(f"{name}[{index}]", each) for index, each in enumerate(found[name])]
        waiting += [(f"{place}.{name}", each) for name, each in inner if isinstance(each, Mapping)]


def kind_of(found: Mapping[str, Any]) -> str:
    """Return a format's type; what has none is a tag."""
    return str(found.get("type", "tag"))


def bad_tag(place: str, problem: str) -> InvalidParameterError:
    """Return the error about something in a structural tag."""
    return InvalidParameterError(f"structural_tag{place and '.'}{place} {problem}", param="structural_tag")


def _from_old_spelling(structures: Any, triggers: Any) -> dict[str, Any]:
    if not _are_formats(structures) or not _TEXTS.is_right(triggers):
        raise bad_tag("", "must have structures, each with begin, schema and end, and triggers, a list of texts")
    tags = []
    for index, each in enumerate(structures):
        if each.keys() != {"begin", "schema", "end"}:
            raise bad_tag(f"structures[{index}]", "must have begin, schema and end, and nothing else")
        schema = each["schema"]
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise bad_tag(f"structures[{index}].schema", f"is no JSON ({error})") from None
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": each["begin"], "content": content, "end": each["end"]})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _check_format(place: str, found: Mapping[str, Any]) -> None:
    kind = kind_of(found)
    known = FORMATS.get(kind)
    if known is None:
        raise bad_tag(f"{place}.type", f"is {kind[:60]!r}; it must be one of {', '.join(FORMATS)}")
    for name in found:
        if name not in known and name != "type":
            raise bad_tag(f"{place}.{name[:60]}", f"is not supported; {kind} has {', '.join(known)}")
    for name, rule in known.items():
        if name not in found:
            if rule.is_required:
                raise bad_tag(f"{place}.{name}", f"is missing; it must be {rule.meaning}")
        elif not rule.is_right(found[name]):
            raise bad_tag(f"{place}.{name}", f"must be {rule.meaning}")
    if kind == "repeat" and found["min"] > found["max"]:
        raise bad_tag(f"{place}.min", "must be at most max")
    if kind == "triggered_tags":
        _check_triggers(place, found)


def _check_triggers(place: str, found: Mapping[str, Any]) -> None:
    for index, tag in enumerate(found["tags"]):
        begin = tag.get("begin")
        fitting = [each for each in found["triggers"] if isinstance(begin, str) and begin.startswith(each)]
        if len(fitting) != 1:
            raise bad_tag(f"{place}.tags[{index}].begin", f"must start with one of the triggers, not {len(fitting)}")
