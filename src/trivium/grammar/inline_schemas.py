"""Schemas inside a grammar in Lark's notation (`%json {…}`), so that they are settled like any other.

::

    start: "<" body ">"
    body: %json {"type": "object", …}        refused by its place, or written as the library is to read it
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from trivium.base.errors import InvalidParameterError

_DIRECTIVE = re.compile(r"%json\s*(?=\{)")
_OPTIONS = "x-guidance"


def settle_schemas(lark: str, settled: Callable[[Any, bool], str]) -> str:
    """Return a grammar with every schema in it as `settled` returns it.

    Args:
        lark: The grammar.
        settled: Takes a schema, and whether its author let whitespace be flexible in it.

    Raises:
        InvalidParameterError: A schema cannot be enforced, or is no JSON.
    """
    parts, done = [], 0
    for found in _DIRECTIVE.finditer(lark):
        if found.start() < done:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError) as error:
            raise InvalidParameterError(f"grammar has a %json that is no JSON: {error}", param="grammar") from None
        options = schema.get(_OPTIONS)
        is_flexible = isinstance(options, dict) and options.get("whitespace_flexible") is True
        parts += [lark[done : found.end()], settled(schema, is_flexible)]
        done = end
    return "".join((*parts, lark[done:]))
