"""From a record to prompts: lanes of sessions of turns; a seed gives the same load everywhere.

::

    lane        sessions that are played a fixed number at a time
    session     turns that follow each other: the next prompt needs the last answer
    turn        prompt = everything before + `added`; then comes the answer
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from benchmarks.workloads.shapes import Mixed, MultiTurn, Rag, Shape, SharedPrefix

Ids = tuple[int, ...]
_PAGE = 16  # the shared part of a retrieved prompt is never a whole number of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request."""

    added: Ids
    """What is appended to what the session holds."""
    output_len: int
    answer: Ids | None = None
    """What the session holds afterwards as the answer; `None`: what the engine answered."""
    filler: Ids = ()
    """What an engine's own answer is filled up with to `output_len`, where its text makes fewer tokens than it was."""

    def answer_of(self, own: Ids) -> Ids:
        """Return what the session holds as the answer, given the tokens that the text of the engine's own one makes.

        That text may make more tokens than it was, or fewer (special tokens have none); all engines shall meet prompts
        of equal lengths.
        """
        return self.answer if self.answer is not None else (own + self.filler)[: self.output_len]


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that follow each other."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """Sessions of one kind, `concurrency` of which are open at a time."""

    kind: str
    concurrency: int
    sessions: tuple[Session, ...]


def draw(shape: Shape, ids: Sequence[int], seed: int, concurrency: int) -> list[Lane]:
    """Draw a load.

    Args:
        shape: Any but recorded conversations, which `recorded` reads.
        ids: Token ids to draw from.
        seed: Loads of other seeds share no beginnings with this one, so that no cache of an earlier run helps. They
            differ in nothing else: lengths, order, and who shares what with whom are those of the shape.
        concurrency: Requests open at a time, of all lanes together.

    Raises:
        ValueError: There are no ids, or the shape cannot be drawn.
    """
    if not ids:
        raise ValueError("there are no token ids to draw prompts from")
    return _DRAWN[type(shape)](shape, _Words(ids, seed), concurrency)


def single_prompts(lanes: Sequence[Lane]) -> list[Ids]:
    """Return the prompts of lanes whose sessions have one turn each, in order."""
    return [turn.added for lane in lanes for session in lane.sessions for turn in session.turns]


class _Words:
    """Random texts of an exact length, and the random numbers of all that is the same with every seed."""

    def __init__(self, ids: Sequence[int], seed: int) -> None:
        self._ids = list(ids)
        self._tokens = random.Random(seed)  # noqa: S311  (prompts, not secrets)
        self.shape_rng = random.Random(0)  # noqa: S311
        """Draws lengths, order, and what is shared."""

    def text(self, length: int) -> Ids:
        return tuple(self._tokens.choices(self._ids, k=length))


def _shared_prefix(shape: SharedPrefix, words: _Words, concurrency: int) -> list[Lane]:
    begins = [words.text(shape.system_len) for _ in range(shape.groups)]
    prompts = [begin + words.text(shape.question_len) for begin in begins for _ in range(shape.per_group)]
    return [_one_lane(words, prompts, shape.output_len, concurrency)]


def _multi_turn(shape: MultiTurn, words: _Words, concurrency: int) -> list[Lane]:
    system = words.text(shape.system_len)

    def turns() -> Iterator[Turn]:
        for idx in range(shape.turns):
            message = words.text(shape.message_len)
            drawn = words.text(shape.output_len)
            answer, filler = (None, drawn) if shape.own_answers else (drawn, ())
            added = message if idx else system + message
            yield Turn(added=added, output_len=shape.output_len, answer=answer, filler=filler)

    return [Lane("chat", concurrency, tuple(Session(tuple(turns())) for _ in range(shape.chats)))]


def _rag(shape: Rag, words: _Words, concurrency: int) -> list[Lane]:
    rng = words.shape_rng
    least, most = shape.document_len * 2 // 3, shape.document_len * 4 // 3
    system = words.text(shape.system_len)
    pool = [words.text(rng.randint(least, most)) for _ in range(shape.pool)]
    choices = [chosen for chosen in combinations(pool, shape.documents) if _length(system, *chosen) % _PAGE]
    if len(choices) < shape.topics:
        raise ValueError(
            f"{shape.pool} documents make {len(choices)} topics of {shape.documents} that end inside a page, "
            f"and {shape.topics} are wanted; take a larger pool"
        )
    topics = [sum(chosen, system) for chosen in rng.sample(choices, shape.topics)]
    prompts = []
    for idx in range(shape.requests - shape.repeats):
        begin = topics[idx % shape.topics]
        own_len = round((len(begin) - shape.system_len) * (1 - shape.shared) / shape.shared)
        prompts.append(begin + words.text(own_len) + words.text(shape.question_len))
    prompts += rng.sample(prompts, shape.repeats)
    return [_one_lane(words, prompts, shape.output_len, concurrency)]


def _mixed(shape: Mixed, words: _Words, concurrency: int) -> list[Lane]:
    streams = [words.text(shape.stream_len) for _ in range(shape.streams)]
    longs = [words.text(words.shape_rng.randint(shape.shortest_long, shape.longest_long)) for _ in range(shape.longs)]
    return [
        Lane("stream", concurrency - shape.longs_open, _sessions(streams, shape.stream_output_len)),
        Lane("long", shape.longs_open, _sessions(longs, shape.long_output_len)),
    ]


def _one_lane(words: _Words, prompts: list[Ids], output_len: int, concurrency: int) -> Lane:
    words.shape_rng.shuffle(prompts)
    return Lane("request", concurrency, _sessions(prompts, output_len))


def _sessions(prompts: Sequence[Ids], output_len: int) -> tuple[Session, ...]:
    return tuple(Session((Turn(added=prompt, output_len=output_len),)) for prompt in prompts)


def _length(*parts: Ids) -> int:
    return sum(map(len, parts))


_DRAWN: dict[type, Callable[[Any, _Words, int], list[Lane]]] = {
    SharedPrefix: _shared_prefix,
    MultiTurn: _multi_turn,
    Rag: _rag,
    Mixed: _mixed,
}
