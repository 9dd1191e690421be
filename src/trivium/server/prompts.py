"""Prompts as requests bring them: one or many, as texts or as token ids."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.base.errors import InvalidParameterError
from trivium.server.fields import root_field
from trivium.server.service import Service
from trivium.server.tables import MAX_PROMPTS

Entry = tuple[str, str | list[int]]
"""A prompt's name in messages, and its text or ids."""


def split_prompts(
    field: str, value: object, *, forms: str = "a text, texts, token ids or lists of them"
) -> list[Entry]:
    """Split what a field holds into its prompts.

    ::

        "a" -> 1 text      ["a", "b"] -> 2 texts      [1, 2] -> 1 list of ids      [[1], [2]] -> 2 lists of ids

    Args:
        field: The field's name.
        value: What it holds.
        forms: What it may hold, in words.

    Raises:
        InvalidParameterError: It holds something else, nothing, or too much.
    """
    if isinstance(value, str):
        return [(field, value)]
    if not isinstance(value, list):
        what = "is missing" if value is None else "has a wrong type"
        raise InvalidParameterError(f"{field} {what}; it must be {forms}", param=field)
    if not value:
        raise InvalidParameterError(f"{field} is empty; at least one token is needed", param=field)
    if not isinstance(value[0], str | list):
        return [(field, value)]
    if len(value) > MAX_PROMPTS:
        raise InvalidParameterError(f"{field} has {len(value)} entries; at most {MAX_PROMPTS} are taken", param=field)
    kind = type(value[0])
    for idx, entry in enumerate(value):
        if type(entry) is not kind:
            raise InvalidParameterError(f"{field}[{idx}] is of another type than {field}[0]", param=field)
    return [(f"{field}[{idx}]", entry) for idx, entry in enumerate(value)]


async def tokenize_prompts(
    service: Service, entries: Sequence[Entry], *, adds_special: bool
) -> list[tuple[str, list[int], str | None]]:
    """Return name, ids and text (`None` for a prompt given as ids) of each prompt.

    Raises:
        InvalidParameterError: A text is empty.
    """
    texts = [(name, entry) for name, entry in entries if isinstance(entry, str)]
    for name, text in texts:
        if not text:
            raise InvalidParameterError(f"{name} is empty; at least one character is needed", param=root_field(name))
    encoded = await service.encode([text for _, text in texts], add_special_tokens=adds_special)
    if texts:
        return [(name, ids, text) for (name, text), ids in zip(texts, encoded, strict=True)]
    return [(name, entry, None) for name, entry in entries if not isinstance(entry, str)]
