"""How many logits rows a chunk wants, and how far it may go with the rows that are left.

::

    chunk                [start ........................ start + num_tokens)
    scored rows                   [next_scored ......... prompt_len - 1)
    drawing row                                                 target_len - 1, if the chunk reaches it
"""

from __future__ import annotations

from trivium.schedule.decision import Entry
from trivium.schedule.request import Request


def limit_by_rows(request: Request, start: int, num_tokens: int, num_rows: int, *, can_draw: bool) -> int:
    """Return how many of `num_tokens` tokens from `start` on can run with `num_rows` wanted rows; maybe 0."""
    first = request.next_scored_row
    end = start + num_tokens
    if first is not None:
        first = max(first, start)
        if min(end, request.prompt_len - 1) - first > num_rows:
            end = first + num_rows
    if can_draw and end == request.target_len:
        scored = 0 if first is None else max(0, min(end, request.prompt_len - 1) - first)
        if scored + 1 > num_rows:
            end -= 1
    return end - start


def want_rows(entry: Entry, *, can_draw: bool) -> None:
    """Set the wanted rows of an entry from the tokens that it runs."""
    request = entry.request
    end = entry.start + entry.num_tokens
    entry.draws = can_draw and end == request.target_len
    entry.num_rows = int(entry.draws)
    first = request.next_scored_row
    if first is not None:
        entry.scored_start = max(first, entry.start)
        entry.num_rows += max(0, min(end, request.prompt_len - 1) - entry.scored_start)
