"""Write docs/reference/json-schema.md: what becomes of every keyword, and of the public test suite, once fetched."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from generated import write_or_compare

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "json-schema.md"
sys.path.insert(0, str(ROOT / "tests"))

from support.schema_suites import groups  # noqa: E402  (tests are no package)
from support.schema_verdicts import draft_rows, verdicts  # noqa: E402
from trivium.grammar import keywords  # noqa: E402

HEAD = """# JSON Schema

Written by `tools/schema_reference.py`. Drafts 4, 6, 7, 2019-09 and 2020-12 are understood (without
`$schema`, the last). A schema is enforced in full or refused; `trivium schema check FILE` says which, and where."""
ROLES = {
    "enforced": "Enforced.",
    "annotation": "Annotations, which say nothing about values and are passed over, as is any keyword of no draft.",
    "refused": "Refused by their place, unless every document satisfies them (`uniqueItems: false`, for example).",
}
FORMATS = """
Formats of texts: {known}.
Days must exist, minutes have 60 seconds, letters of date-times are capitals. Other formats are refused, but for
{hints}, which every value satisfies. Formats of integers: {integers}, as bounds; of 64 bits, up to
2^53 - 1, which every reader of JSON takes exactly. Bounds beyond it are refused.

Of the refused, `propertyNames` is enforced where it is a list of names, a pattern, or bounds of their length, without
`properties` beside it; `unevaluatedProperties` where it says what `additionalProperties` would.

Patterns are searched for, not anchored; look-around and back references are refused; `\\d` and `\\w` are ASCII's.
Properties come in the order in which the schema lists them. Names that it does not list may come
twice, as in any JSON.
"""
SUITE = """
## The public test suite

JSON-Schema-Test-Suite as of `jsonschema` 4.26.0, optional tests and formats included. "Kept out" are documents that
can't be an answer: properties in another order than the schema's, `1.0` for `1`, leap seconds, rare forms of e-mail
and IPv6 addresses, and, where a format is an annotation, texts that are not of it. "Let in" are patterns with `\\S`,
to which U+FEFF is no space, and contents (`contentMediaType`), which are annotations since 2019-09.

| draft | schemas enforced | refused | valid documents taken | kept out | invalid ones kept out | let in |
|---|---|---|---|---|---|---|
"""
WHY = """
Why schemas are refused:

| reason | schemas |
|---|---|
"""


def page() -> str:
    """Return the page."""
    return "\n".join(lines()) + "\n"


def lines() -> Iterator[str]:
    """Write the page, line by line."""
    yield HEAD + "\n\n## Keywords\n"
    for role, meaning in ROLES.items():
        names = sorted(name for name, keyword in keywords.KEYWORDS.items() if keyword.role == role)
        yield f"- {meaning}\n  {', '.join(f'`{name}`' for name in names)}"
    known = sorted({*keywords.FORMAT_PATTERNS, *keywords.LIBRARY_FORMATS} - {"unknown"})
    yield FORMATS.format(
        known=_listed(known), hints=_listed(keywords.HINT_FORMATS), integers=_listed(keywords.INTEGER_FORMATS)
    ).rstrip()
    found = verdicts(groups())
    yield SUITE + "\n".join(draft_rows(found))
    yield WHY + "\n".join(f"| {reason} | {count} |" for reason, count in found.reasons.most_common())


def _listed(names: object) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))  # type: ignore[call-overload]


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, page, about=__doc__, behind="what is enforced; run tools/schema_reference.py"))
