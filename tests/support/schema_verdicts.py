"""What a schema's grammar makes of the suite's documents, counted; the rows of docs/reference/json-schema.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from support.grammars import grammar
from support.schema_suites import DRAFTS, Case, Group
from trivium.base.errors import InvalidParameterError
from trivium.grammar.matcher import Grammar, Matcher


class Verdicts(NamedTuple):
    """What became of the suite's schemas and documents."""

    schemas: Counter[tuple[str, str]]
    """By (draft, `compiled` or `refused`)."""
    documents: Counter[tuple[str, str]]
    """By (draft, what happened to one)."""
    reasons: Counter[str]
    """Of refusals, in few words."""
    kept_out: list[str]
    """Valid documents that a compiled grammar has no place for."""
    let_in: list[str]
    """Invalid documents that it has."""


def verdicts(groups: Iterable[Group]) -> Verdicts:
    """Try every document of every schema."""
    found = Verdicts(Counter(), Counter(), Counter(), [], [])
    for group in groups:
        try:
            compiled = compile_schema(group.schema)
        except InvalidParameterError as error:
            found.schemas[group.draft, "refused"] += 1
            found.reasons[kind_of(str(error))] += 1
            continue
        found.schemas[group.draft, "compiled"] += 1
        for case in group.cases:
            if (is_let_in := accepts(compiled, case.text)) is None:
                continue
            found.documents[group.draft, _WORDS[case.is_valid, is_let_in]] += 1
            if is_let_in != case.is_valid:
                (found.let_in if is_let_in else found.kept_out).append(f"{group.file}: {group.about}: {_short(case)}")
    return found


_WORDS = {
    (True, True): "valid, taken",
    (True, False): "valid, kept out",
    (False, False): "invalid, kept out",
    (False, True): "invalid, let in",
}


def compile_schema(schema: Any) -> Grammar:
    """Compile a schema; one that is `false` is refused as a request with it would be."""
    if schema is False:
        raise InvalidParameterError("json cannot be enforced: no document satisfies the schema false", param="json")
    return grammar(json=schema)


def accepts(compiled: Grammar, text: str) -> bool | None:
    """Return whether a text is a sentence; `None` where it holds half a character, which no text does."""
    try:
        tokens = list(text.encode())
    except UnicodeEncodeError:
        return None
    matcher: Matcher = compiled.start()
    if matcher.allows(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.advance(token)
    return matcher.is_accepting


_KINDS = (
    ("the keyword '", "keyword `{}`"),
    ("the format '", "format `{}`"),
    ("Resource '", "reference to another document"),
    ("Anchor '", "anchor in another place"),
    ("oneOf", "`oneOf` whose branches overlap"),
    ("patternProperty regexes", "`patternProperties` that overlap"),
    ("regex parse error", "pattern that is no regular expression to the library"),
    ("min/maxProperties", "`minProperties` or `maxProperties` with optional properties"),
    ("minProperties", "`minProperties` with free names"),
    ("is exact", "bound beyond 2^53"),
    ("float range", "bound beyond 2^53"),
    ("too many digits", "`multipleOf` with too many digits"),
    ("nsatisfiable", "no document satisfies it"),
    ("no document satisfies", "no document satisfies it"),
    ("leads back to itself", "reference that leads to itself"),
    ("Pointer '", "reference to nothing"),
    ("Unimplemented keys", "reference to the schema of a draft"),
    ("Unknown format", "reference to the schema of a draft"),
)


def kind_of(message: str) -> str:
    """Return what a refusal is about, in few words."""
    for sign, words in _KINDS:
        if sign in message:
            return words.format(message.partition(sign)[2].partition("'")[0])
    return "another reason"


def _short(case: Case) -> str:
    return case.text if len(case.text) <= 40 else f"{case.text[:37]}..."


def draft_rows(found: Verdicts) -> list[str]:
    """Rows of the page's table, a draft each."""
    rows = []
    for draft in DRAFTS:
        schemas = [found.schemas[draft, word] for word in ("compiled", "refused")]
        documents = [found.documents[draft, word] for word in _WORDS.values()]
        rows.append(f"| {draft.removeprefix('draft')} | {' | '.join(map(str, schemas + documents))} |")
    return rows
