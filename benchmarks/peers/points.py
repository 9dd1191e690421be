"""What is measured: suites of points, the same for every engine.

A point is a number of prompts of an exact length, an exact number of tokens to generate, and the way in: `process`, the
engine alone without HTTP, or `http`, through its OpenAI-compatible server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.workloads.shapes import Mixed, MultiTurn, Rag, Recorded, Shape, SharedPrefix

Way = Literal["process", "http"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load."""

    name: str
    suite: str
    way: Way
    concurrency: int
    """Prompts that run at the same time."""
    num_requests: int
    """Prompts in all; `concurrency` of them are open until the rest has begun (closed loop)."""
    prompt_len: int
    output_len: int
    repeats: int = 1
    """Measurements inside one turn of an engine, in process; their median counts."""
    shape: Shape | None = None
    """What prompts have in common and which follow each other; `None`: nothing and none. With a shape, `prompt_len` and
    `output_len` are the longest there may be."""

    @property
    def is_prefill(self) -> bool:
        """Whether prompt tokens per second are what counts, not output tokens."""
        return self.output_len <= 1

    @property
    def context_len(self) -> int:
        """Tokens that one sequence grows to."""
        return self.prompt_len + self.output_len

    @property
    def unit(self) -> str:
        """What `tokens_per_s` counts here."""
        return "prompt tokens/s" if self.is_prefill else "output tokens/s"


def _batch(size: int, repeats: int = 1) -> Point:
    return Point(
        name=f"batch {size}",
        suite="batch",
        way="process",
        concurrency=size,
        num_requests=size,
        prompt_len=128,
        output_len=128,
        repeats=repeats,
    )


def _online(concurrency: int, num_requests: int) -> Point:
    return Point(
        name=f"HTTP {concurrency}",
        suite="online",
        way="http",
        concurrency=concurrency,
        num_requests=num_requests,
        prompt_len=128,
        output_len=128,
    )


def _shaped(suite: str, concurrency: int, shape: Shape) -> Point:
    return Point(
        name=f"{suite} {concurrency}",
        suite=suite,
        way="http",
        concurrency=concurrency,
        num_requests=shape.num_requests,
        prompt_len=shape.longest_prompt,
        output_len=shape.longest_output,
        shape=shape,
    )


def _shared_prefix(concurrency: int, groups: int, per_group: int) -> Point:
    shape = SharedPrefix(groups=groups, per_group=per_group, system_len=603, question_len=24, output_len=64)
    return _shaped("shared-prefix", concurrency, shape)


def _multi_turn(chats: int) -> Point:
    return _shaped("multi-turn", chats, MultiTurn(chats=chats, turns=6, system_len=203, message_len=60, output_len=48))


def _mixed(concurrency: int, longs_open: int) -> Point:
    streams, longs = 2 * (concurrency - longs_open), 2 * longs_open
    return _shaped("mixed", concurrency, Mixed(streams=streams, longs=longs, longs_open=longs_open))


def _recorded(concurrency: int) -> Point:
    shape = Recorded(chats=48, turns=8, context_len=3500, longest_message=600, output_len=32)
    return _shaped("recorded", concurrency, shape)


POINTS: tuple[Point, ...] = (
    Point(
        name="decode 128",
        suite="single",
        way="process",
        concurrency=1,
        num_requests=1,
        prompt_len=1,
        output_len=128,
        repeats=3,
    ),
    Point(
        name="prefill 512",
        suite="prefill",
        way="process",
        concurrency=1,
        num_requests=1,
        prompt_len=512,
        output_len=1,
        repeats=5,
    ),
    _batch(1, repeats=3),
    _batch(4, repeats=2),
    _batch(16),
    _batch(64),
    _batch(128),
    Point(
        name="HTTP prefill 512",
        suite="online",
        way="http",
        concurrency=1,
        num_requests=5,
        prompt_len=512,
        output_len=1,
    ),
    _online(1, 4),
    _online(16, 48),
    _online(64, 128),
    _shared_prefix(16, groups=4, per_group=8),
    _shared_prefix(64, groups=8, per_group=16),
    _shared_prefix(128, groups=8, per_group=32),
    _multi_turn(16),
    _multi_turn(64),
    _multi_turn(128),
    _shaped("rag", 16, Rag()),
    _shaped("rag", 64, Rag()),
    _shaped("rag", 100, Rag()),
    _mixed(16, longs_open=2),
    _mixed(64, longs_open=8),
    _mixed(128, longs_open=16),
    _recorded(16),
    _recorded(48),
)
"""Every point, in the order of the tables."""
SUITES: tuple[str, ...] = tuple(dict.fromkeys(point.suite for point in POINTS))
PLAIN_SUITES: tuple[str, ...] = tuple(dict.fromkeys(point.suite for point in POINTS if point.shape is None))
"""Suites whose prompts have nothing in common."""


def find(name: str) -> Point:
    """Return the point of a name.

    Raises:
        ValueError: There is none.
    """
    for point in POINTS:
        if point.name == name:
            return point
    raise ValueError(f"there is no point {name!r}; points: {', '.join(point.name for point in POINTS)}")


def choose(suites: Sequence[str], only: Sequence[str] = ()) -> list[Point]:
    """Return the points of some suites, in order.

    Args:
        suites: Names of suites.
        only: Names of points, or their last words ("16", "512"); all of the suites when empty.

    Raises:
        ValueError: A name stands for nothing.
    """
    if unknown := [suite for suite in suites if suite not in SUITES]:
        raise ValueError(f"there is no suite {unknown[0]!r}; suites: {', '.join(SUITES)}")
    points = [point for point in POINTS if point.suite in suites]
    if unknown := [name for name in only if not any(_is_called(point, name) for point in points)]:
        names = ", ".join(point.name for point in points)
        raise ValueError(f"there is no point {unknown[0]!r} in {', '.join(suites)}; points: {names}")
    return [point for point in points if not only or any(_is_called(point, name) for name in only)]


def _is_called(point: Point, name: str) -> bool:
    return name in {point.name, point.name.rpartition(" ")[2]}
