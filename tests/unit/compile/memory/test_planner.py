"""Memory plans: lifetimes by brute force, no two values alive together in the same bytes, and a proof that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.base.errors import InternalError
from trivium.compile.memory import Arena, plan_memory, prove
from trivium.compile.memory.lifetimes import find_blocks
from trivium.plan.program import ARENA_ALIGNMENT


@dataclass(frozen=True)
class Line:
    """An instruction: what it reads and writes, and what may lie over what."""

    reads: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)
    in_place: tuple[str, str] | None = None


def line(reads: str, writes: str, in_place: tuple[str, str] | None = None) -> Line:
    """Name operands o0, o1, ... and results r0, r1, ..."""
    return Line(
        {f"o{idx}": value for idx, value in enumerate(reads.split())},
        {f"r{idx}": value for idx, value in enumerate(writes.split())},
        in_place,
    )


OVER = ("o0", "r0")


def alive(program: Sequence[Line], value: str, keep: set[str]) -> set[int]:
    """Every instruction during which a value's bytes are needed, one by one."""
    (first,) = [idx for idx, each in enumerate(program) if value in each.writes.values()]
    return {
        idx
        for idx in range(first, len(program))
        if idx == first or value in keep or any(value in later.reads.values() for later in program[idx:])
    }


def may_share(program: Sequence[Line], old: str, new: str, idx: int, keep: set[str]) -> bool:
    """Whether instruction idx may write new over old."""
    each = program[idx]
    is_named = each.in_place is not None and each.reads.get(each.in_place[0]) == old
    is_named = is_named and each.writes.get(each.in_place[1]) == new  # type: ignore[index]  # is_named says it is there
    is_last = old not in keep and not any(old in later.reads.values() for later in program[idx + 1 :])
    return is_named and is_last and list(each.reads.values()).count(old) == 1


def assert_disjoint(program: Sequence[Line], sizes: Mapping[str, int], arena: Arena, keep: set[str]) -> None:
    """Look at every pair of values at every instruction."""
    held = {value: alive(program, value, keep) for value in sizes}
    for one in sizes:
        start, end = arena.offsets[one], arena.offsets[one] + sizes[one]
        assert start % ARENA_ALIGNMENT == 0
        assert start >= 0
        assert end <= arena.num_bytes
        for other in sizes:
            together = held[one] & held[other]
            is_apart = end <= arena.offsets[other] or arena.offsets[other] + sizes[other] <= start
            if one == other or not together or is_apart:
                continue
            (idx,) = together
            pair = (one, other) if other in program[idx].writes.values() else (other, one)
            assert may_share(program, *pair, idx, keep), f"{one} and {other} are alive together and overlap"
            assert (start, sizes[one]) == (arena.offsets[other], sizes[other])


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Line], dict[str, int], set[str]]:
    """Draw a program in which every value is written once and most are read, and sizes of few kinds."""
    values: list[str] = []
    program = []
    for _ in range(draw(st.integers(1, 24))):
        recent = values[-6:] + values[:1]
        reads = draw(st.lists(st.sampled_from([*recent, "step input"]), max_size=3)) if recent else []
        names = [f"v{len(values) + idx}" for idx in range(draw(st.integers(1, 3)))]
        can_overwrite = draw(st.booleans()) and reads
        program.append(
            line(" ".join(reads).replace("step input", "input"), " ".join(names), OVER if can_overwrite else None)
        )
        values += names
    sizes = {value: draw(st.sampled_from([1, 63, 64, 65, 256, 1000, 4096])) for value in values}
    keep = set(draw(st.lists(st.sampled_from(values), max_size=2)))
    return program, sizes, keep


@settings(max_examples=120, deadline=None)
@given(drawn=programs())
def test_no_two_values_that_are_alive_together_share_bytes(drawn: tuple[list[Line], dict[str, int], set[str]]) -> None:
    program, sizes, keep = drawn
    arena = plan_memory(program, sizes, keep=keep)
    assert_disjoint(program, sizes, arena, keep)
    prove(program, sizes, arena, keep=keep)
    aligned = sum(-(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT for size in sizes.values())
    assert arena.num_bytes <= aligned
    assert plan_memory(program, sizes, keep=keep) == arena


@settings(max_examples=120, deadline=None)
@given(drawn=programs(), data=st.data())
def test_the_proof_finds_what_brute_force_finds(
    drawn: tuple[list[Line], dict[str, int], set[str]], data: st.DataObject
) -> None:
    """Any arena, sound or not: the proof by running agrees with the look at every pair of values."""
    program, sizes, keep = drawn
    places = st.integers(0, 12).map(lambda place: place * ARENA_ALIGNMENT)
    offsets = {value: data.draw(places, label=value) for value in sizes}
    arena = Arena(offsets, 16 * ARENA_ALIGNMENT + 4096)
    try:
        assert_disjoint(program, sizes, arena, keep)
    except (AssertionError, ValueError):
        # A value that is never read may be overwritten at once: the proof knows, brute force does not ask.
        unread = [v for v in sizes if v not in keep and not any(v in each.reads.values() for each in program)]
        if not unread:
            with pytest.raises(InternalError):
                prove(program, sizes, arena, keep=keep)
    else:
        prove(program, sizes, arena, keep=keep)


def test_a_value_that_dies_makes_room() -> None:
    program = [line("", "a"), line("a", "b"), line("b", "c"), line("c", "d")]
    sizes = dict.fromkeys("abcd", 100)
    arena = plan_memory(program, sizes)
    assert arena.num_bytes == 2 * 128
    assert arena.offsets["a"] == arena.offsets["c"] != arena.offsets["b"] == arena.offsets["d"]


def test_the_smallest_gap_that_fits_is_taken() -> None:
    # By size:  | a | b | c | d | e |  where b and d are dead when x comes: b leaves the larger hole.
    program = [line("", "a b c d e"), line("a c e", "x"), line("a c e x", "y")]
    sizes = {"a": 2048, "b": 1500, "c": 1024, "d": 700, "e": 640, "x": 600, "y": 64}
    arena = plan_memory(program, sizes)
    assert arena.offsets["x"] == arena.offsets["d"]


def test_a_residual_is_overwritten_by_its_sum_all_the_way_down() -> None:
    program = [line("", "x0")]
    for layer in range(5):
        program += [line(f"x{layer}", f"y{layer}"), line(f"x{layer} y{layer}", f"x{layer + 1}", OVER)]
    sizes = {name: 256 for each in program for name in each.writes.values()}
    arena = plan_memory(program, sizes, keep={"x5"})
    assert len({arena.offsets[f"x{layer}"] for layer in range(6)}) == 1
    assert len({arena.offsets[f"y{layer}"] for layer in range(5)}) == 1
    assert arena.num_bytes == 512


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        ([line("", "a"), line("a", "b", OVER), line("a b", "c")], {"a": 64, "b": 64, "c": 64}),
        ([line("", "a"), line("a", "b", OVER)], {"a": 64, "b": 128}),
        ([line("", "a"), line("a a", "b", OVER)], {"a": 64, "b": 64}),
        ([line("", "a"), line("input a", "b", OVER)], {"a": 64, "b": 64}),
    ],
)
def test_what_lives_on_or_does_not_fit_is_not_overwritten(program: list[Line], sizes: dict[str, int]) -> None:
    arena = plan_memory(program, sizes)
    assert arena.offsets["a"] != arena.offsets["b"]
    prove(program, sizes, arena)


def test_a_kept_value_is_not_overwritten_and_outlives_the_program() -> None:
    program = [line("", "a"), line("a", "b", OVER), line("b", "c")]
    sizes = dict.fromkeys("abc", 64)
    arena = plan_memory(program, sizes, keep={"a"})
    assert len(set(arena.offsets.values())) == 3
    blocks = find_blocks(program, sizes, {"a"})
    assert [(block.values, block.first, block.last) for block in blocks] == [
        (("a",), 0, 3),
        (("b",), 1, 2),
        (("c",), 2, 2),
    ]


@pytest.mark.parametrize(
    ("program", "sizes", "keep", "problem"),
    [
        ([line("", "a"), line("", "a")], {"a": 1}, "", "a is written by instructions 0 and 1"),
        ([line("b", "a"), line("", "b")], {"a": 1, "b": 1}, "", "instruction 0 reads b before it is written"),
        ([line("", "a")], {}, "", "instruction 0 writes a, whose size is not known"),
        ([line("", "a")], {"a": 0}, "", "values without bytes: a"),
        ([line("", "a")], {"a": 1, "b": 1}, "", "no instruction writes b"),
        ([line("", "a")], {"a": 1}, "z", "no instruction writes z"),
    ],
)
def test_what_is_no_program_is_refused(program: list[Line], sizes: dict[str, int], keep: str, problem: str) -> None:
    with pytest.raises(InternalError, match=problem):
        plan_memory(program, sizes, keep=set(keep))


@pytest.mark.parametrize(
    ("offsets", "num_bytes", "problem"),
    [
        ({"a": 0, "b": 0, "c": 128}, 192, "instruction 1 writes b over a, which it reads"),
        ({"a": 0, "b": 64, "c": 0}, 192, "instruction 3 reads a, which was overwritten or never written"),
        ({"a": 0, "b": 64, "c": 64}, 192, "instruction 2 writes c over b, which it reads"),
        ({"a": 0, "b": 64, "c": 128}, 180, "c lies at 128"),
        ({"a": 32, "b": 128, "c": 256}, 512, "a lies at 32, which is no multiple of 64"),
        ({"a": -64, "b": 128, "c": 256}, 512, "a lies at -64"),
    ],
)
def test_the_proof_names_what_is_wrong(offsets: dict[str, int], num_bytes: int, problem: str) -> None:
    program = [line("", "a"), line("a", "b"), line("b", "c"), line("a c", "")]
    sizes = dict.fromkeys("abc", 64)
    prove(program, sizes, Arena({"a": 0, "b": 64, "c": 128}, 192))
    with pytest.raises(InternalError, match=problem):
        prove(program, sizes, Arena(offsets, num_bytes))


def test_the_proof_looks_at_twins_and_at_what_is_kept() -> None:
    twins = [line("", "a b")]
    with pytest.raises(InternalError, match="writes a and b to the same bytes"):
        prove(twins, {"a": 64, "b": 64}, Arena({"a": 0, "b": 0}, 64))
    program = [line("", "a"), line("", "b")]
    with pytest.raises(InternalError, match="a is kept, but overwritten"):
        prove(program, {"a": 64, "b": 64}, Arena({"a": 0, "b": 0}, 64), keep={"a"})
    partly = [line("", "a"), line("a", "b", OVER)]
    with pytest.raises(InternalError, match="writes b over a"):
        prove(partly, {"a": 128, "b": 128}, Arena({"a": 0, "b": 64}, 192))
