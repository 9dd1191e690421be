"""A structural tag as a grammar: every format becomes a rule, free text a terminal that cannot hide what ends it.

::

    any text  <fn=          a> {"x":1} </fn>         any text
    |~~~~~~~~~~~~~|         |~~~~~~~~~~~~~~|        |~~~~~~~~|
    UNTIL a trigger is      the rest of one          TAIL: no trigger
    whole the first time    tag, its schema          is in it

Free text is whatever has no trigger or end in it: said by intersection and complement, so that a trigger always begins
one of its tags. A format is *open* where only what comes next ends it; its rule reads the ends too.
Source: the syntax of llguidance's grammars (docs/syntax.md there).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from trivium.base.errors import InvalidParameterError
from trivium.config.structural_tag import bad_tag, kind_of

Ends = tuple[str, ...]
"""Texts of which one ends a format; none where the answer's end does."""


class TagGrammar:
    """Builds the grammar of one structural tag."""

    def __init__(self, schema_text: Callable[[Any], str], lark_text: Callable[[str], str]) -> None:
        """Begin with nothing.

        Args:
            schema_text: Returns a schema as the library's `%json` takes it.
            lark_text: Returns a grammar in Lark's notation, whichever it is in.
        """
        self._schema_text = schema_text
        self._lark_text = lark_text
        self._rules: list[str] = ["ANY: /(?s:.*)/", "SOME: /(?s:.+)/"]
        self._grammars: list[dict[str, str]] = []

    def build(self, root: Mapping[str, Any]) -> str:
        """Return the grammar in the library's notation.

        Raises:
            InvalidParameterError: A schema or grammar in it cannot be enforced, or free text has no end.
        """
        start = self._expression(root, "format", ())
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"name": "structural_tag", "lark_grammar": lark}, *self._grammars]})

    def _expression(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        """Return what reads a format and one of its ends."""
        return self._WRITERS[kind_of(found)](self, found, place, ends)

    def _named(self, prefix: str, body: str) -> str:
        """Make a rule or, for a prefix in capitals, a terminal; returns its name."""
        name = f"{prefix}{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _text_until(self, texts: Sequence[str], others: Sequence[str], excludes: Sequence[str]) -> str:
        """Return a terminal: text that ends with one of `texts`, before which none of them and of `others` is whole."""
        stops = _any_of([*texts, *others])
        return self._named("UNTIL", f"(ANY {_any_of(texts)}) & ~(ANY {stops} SOME){_without(excludes)}")

    def _text_without(self, texts: Sequence[str]) -> str:
        return self._named("TAIL", f"ANY{_without(texts)}")

    def _const_string(self, found: Mapping[str, Any], _: str, ends: Ends) -> str:
        return _joined(_literal(found["value"]), _end_of(ends))

    def _json_schema(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        try:
            text = self._schema_text(found["json_schema"])
        except (InvalidParameterError, ValueError) as error:
            raise bad_tag(f"{place}.json_schema", str(error)) from None
        return _joined(self._named("json", f"%json {text}"), _end_of(ends))

    def _any_text(self, found: Mapping[str, Any], _: str, ends: Ends) -> str:
        excludes = found.get("excludes", ())
        return self._text_until(ends, (), excludes) if ends else self._text_without(excludes)

    def _regex(self, found: Mapping[str, Any], _: str, ends: Ends) -> str:
        pattern = f"/{_slashed(found['pattern'])}/"
        if not ends:
            return self._named("REGEX", pattern)
        whole = f"({pattern} {_any_of(ends)})"
        return self._named("REGEX", f"{whole} & ~({whole} SOME)")

    def _grammar(self, found: Mapping[str, Any], _: str, ends: Ends) -> str:
        name = f"grammar{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._lark_text(found["grammar"])})
        return _joined(f"@{name}", _end_of(ends))

    def _sequence(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        parts: list[str] = []
        elements = found["elements"]
        skips_begin = False
        for index, each in enumerate(elements):
            here = f"{place}.elements[{index}]"
            if skips_begin:
                skips_begin = False
                if kind_of(each) == "const_string":
                    parts += [_end_of(ends)] if index == len(elements) - 1 else []
                    continue
                each = {**each, "begin": ""}  # noqa: PLW2901  (what came before has read it)
            if index == len(elements) - 1:
                parts.append(self._expression(each, here, ends))
            elif is_open(each):
                parts.append(self._expression(each, here, _begin_of(elements[index + 1], here)))
                skips_begin = True
            else:
                parts.append(self._expression(each, here, ()))
        return _joined(*parts)

    def _or(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        options = [
            self._expression(each, f"{place}.elements[{index}]", ends) for index, each in enumerate(found["elements"])
        ]
        return self._named("one_of", " | ".join(options))

    def _tag(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        own = found["end"]
        own_ends = tuple(own) if isinstance(own, list) else ((own,) if own else ())
        content, begin = found["content"], _literal(found["begin"])
        if own_ends:
            inner = self._expression(content, f"{place}.content", own_ends)
            return _joined(begin, self._named("span", inner), _end_of(ends))
        return _joined(begin, self._expression(content, f"{place}.content", ends))

    def _triggered_tags(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        triggers, excludes = found["triggers"], found.get("excludes", ())
        options = []
        for trigger in triggers:
            tags = [
                self._tag({**tag, "begin": tag["begin"].removeprefix(trigger)}, f"{place}.tags[{index}]", ())
                for index, tag in enumerate(found["tags"])
                if tag["begin"].startswith(trigger)
            ]
            if tags:
                others = [each for each in (*triggers, *ends) if each != trigger]
                options.append(f"{self._text_until((trigger,), others, excludes)} ({' | '.join(tags)})")
        one = self._named("triggered", " | ".join(options))
        tail = self._text_until(ends, triggers, excludes) if ends else self._text_without([*triggers, *excludes])
        if found.get("stop_after_first"):
            last = _joined(one, _end_of(ends))
            return last if found.get("at_least_one") else f"({last} | {tail})"
        return f"{one}{'+' if found.get('at_least_one') else '*'} {tail}"

    def _tags_with_separator(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        tags = [self._tag(tag, f"{place}.tags[{index}]", ()) for index, tag in enumerate(found["tags"])]
        one = self._named("separated", " | ".join(tags))
        more = "" if found.get("stop_after_first") else f" ({_joined(_literal(found['separator']), one)})*"
        return _joined(f"({one}{more}){'' if found.get('at_least_one') else '?'}", _end_of(ends))

    def _repeated(self, found: Mapping[str, Any], place: str, ends: Ends) -> str:
        if is_open(found["content"]):
            raise bad_tag(f"{place}.content", "is free text, of which it is not known where it ends")
        marks = {"optional": "?", "star": "*", "plus": "+"}
        mark = marks.get(kind_of(found)) or f"{{{found['min']},{found['max']}}}"
        return _joined(f"({self._expression(found['content'], f'{place}.content', ())}){mark}", _end_of(ends))

    _WRITERS: ClassVar[Mapping[str, Callable[[TagGrammar, Mapping[str, Any], str, Ends], str]]] = {
        "const_string": _const_string,
        "json_schema": _json_schema,
        "any_text": _any_text,
        "regex": _regex,
        "grammar": _grammar,
        "sequence": _sequence,
        "or": _or,
        "tag": _tag,
        "triggered_tags": _triggered_tags,
        "tags_with_separator": _tags_with_separator,
        **dict.fromkeys(("optional", "star", "plus", "repeat"), _repeated),
    }


def is_open(found: Mapping[str, Any]) -> bool:
    """Return whether only what comes next ends a format."""
    match kind_of(found):
        case "any_text":
            return True
        case "triggered_tags":
            return not (found.get("stop_after_first") and found.get("at_least_one"))
        case "sequence":
            return is_open(found["elements"][-1])
        case "or":
            return any(map(is_open, found["elements"]))
        case "tag":
            return not found["end"] and is_open(found["content"])
        case _:
            return False


def _begin_of(following: Mapping[str, Any], place: str) -> Ends:
    """Return the text by which the format after free text ends it."""
    begin = {"const_string": "value", "tag": "begin"}.get(kind_of(following))
    if begin is None or not following[begin]:
        raise bad_tag(place, "is free text; after it comes a const_string or a tag whose begin ends it")
    return (following[begin],)


def _any_of(texts: Sequence[str]) -> str:
    return f"({' | '.join(map(_literal, texts))})"


def _without(texts: Sequence[str]) -> str:
    return f" & ~(ANY {_any_of(texts)} ANY)" if texts else ""


def _end_of(ends: Ends) -> str:
    return _any_of(ends) if ends else ""


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _slashed(pattern: str) -> str:
    """Write a regular expression between slashes."""
    escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL)
    return escaped.replace("\n", r"\n").replace("\r", r"\r")
