"""Whoever kills engines is found and nobody else is blamed; decisions only, against an engine that is a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trivium.engine.suspects import MOST_FUTILE, MOST_TOKENLESS, Death, Suspects

SEATS = 8


@dataclass
class World:
    """Open requests of so many tokens, and engines that die when one reaches its poisoned token."""

    lengths: dict[str, int]
    poison: Mapping[str, int] = field(default_factory=dict)
    """Token (counted from 0, the first one needing the prompt) at which a request kills the engine."""
    seats: int = SEATS
    outside: frozenset[int] = frozenset()
    """Steps, counted over all engines, in which the engine is killed from outside."""

    def __post_init__(self) -> None:
        self.suspects = Suspects()
        self.told = dict.fromkeys(self.lengths, 0)
        self.condemned: list[str] = []
        self.deaths: list[tuple[str, ...]] = []
        self.num_steps = 0
        self.is_hopeless = False

    @property
    def open_ids(self) -> list[str]:
        return [
            each for each, length in self.lengths.items() if self.told[each] < length and each not in self.condemned
        ]

    def run(self) -> None:
        while self.open_ids and not self.is_hopeless:
            self.live()

    def live(self) -> None:
        """Run one engine until it dies or nothing is open."""
        inside: list[str] = []
        at_start = dict(self.told)
        while self.open_ids:
            beyond = [each for each in self.suspects.on_trial if self.told[each] > at_start[each]]
            self.suspects.came_beyond(beyond)
            begun = {each for each in self.open_ids if self.told[each]}
            inside += self.suspects.due(self.open_ids, begun)
            step = tuple(each for each in inside if each in self.open_ids)[: self.seats]
            assert step, "something is open and nothing runs"
            self.check_apart(step)
            self.num_steps += 1
            if self.num_steps in self.outside or any(self.told[each] == self.poison.get(each) for each in step):
                self.die(step, has_progressed=self.told != at_start)
                return
            for each in step:
                self.told[each] += 1

    def check_apart(self, step: tuple[str, ...]) -> None:
        """Whoever is suspected and not on trial stays outside."""
        waiting = {each for group in self.suspects._groups for each in group}
        assert not waiting & set(step)

    def die(self, step: tuple[str, ...], *, has_progressed: bool) -> Death:
        self.deaths.append(step)
        death = self.suspects.died(step, self.open_ids, has_progressed=has_progressed)
        if death.condemned is not None:
            self.condemned.append(death.condemned)
        self.is_hopeless = death.is_hopeless
        return death


def names(count: int) -> dict[str, int]:
    return {f"r{idx}": 4 + idx % 3 for idx in range(count)}


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("token", [0, 3])
def test_the_one_that_kills_is_found_in_a_few_deaths(count: int, place: int, token: int) -> None:
    world = World(names(count), seats=64)
    guilty = list(world.lengths)[place]
    world.poison = {guilty: token}

    world.run()

    assert world.condemned == [guilty]
    assert not world.open_ids
    assert world.deaths[-2:] == [(guilty,), (guilty,)]
    assert len(world.deaths) <= 2 + count.bit_length()


def test_two_in_one_step_are_both_found() -> None:
    world = World(names(7), poison={"r0": 2, "r1": 2})
    world.run()
    assert sorted(world.condemned) == ["r0", "r1"]
    assert not world.open_ids


def test_one_death_alone_condemns_nobody() -> None:
    world = World(names(1), outside=frozenset({2}))
    world.run()
    assert world.condemned == []
    assert len(world.deaths) == 1


def test_a_death_beside_one_that_has_left_is_no_death_alone() -> None:
    suspects = Suspects()
    assert suspects.died(["a", "gone"], ["a"], has_progressed=True).condemned is None
    for condemned in (None, "a"):
        assert suspects.due(["a"], set()) == ["a"]
        assert suspects.died(["a"], ["a"], has_progressed=False).condemned == condemned


def test_two_deaths_alone_at_different_tokens_condemn_nobody() -> None:
    world = World({"r0": 9}, outside=frozenset({2, 4, 6, 8}))
    world.run()
    assert world.condemned == []


def test_who_stood_beside_a_single_suspect_is_suspected_when_that_one_is_cleared() -> None:
    suspects = Suspects()
    suspects.died(("a", "b"), ("a", "b", "c"), has_progressed=True)
    begun = {"a", "b", "c"}
    assert suspects.due(("a", "b", "c"), begun) == ["a"], "alone, though c could run"
    suspects.came_beyond(["a"])
    assert suspects.due(("a", "b", "c"), begun) == ["b", "c"]
    suspects.died(("a", "b", "c"), ("a", "b", "c"), has_progressed=True)  # b on trial, beside others
    assert suspects.due(("a", "b", "c"), begun) == ["b"]
    suspects.came_beyond(["b"])
    assert suspects.due(("a", "b", "c"), begun) == ["a"]
    suspects.came_beyond(["a"])
    assert suspects.due(("a", "b", "c"), begun) == ["c"]
    assert not suspects.is_settled
    suspects.came_beyond(["c"])
    assert suspects.is_settled


def test_who_has_not_begun_waits_for_the_suspects_and_who_has_does_not() -> None:
    suspects = Suspects()
    ids = ("a", "b", "c", "d", "late", "middle")
    suspects.died(("a", "b", "c", "d"), ids, has_progressed=True)
    begun = {"a", "b", "c", "d", "middle"}
    assert suspects.due(ids, begun) == ["a", "b", "middle"]
    assert suspects.due(ids, begun) == []
    suspects.came_beyond(["a", "b"])
    assert suspects.due(ids, begun) == ["c", "d"]
    suspects.came_beyond(["c"])
    assert suspects.due(ids, begun) == []
    suspects.came_beyond(["d"])
    assert suspects.due(ids, begun) == ["late"]


def test_a_request_that_ends_while_on_trial_holds_nobody_up() -> None:
    suspects = Suspects()
    suspects.died(("a", "b"), ("a", "b"), has_progressed=True)
    assert suspects.due(("a", "b"), ()) == ["a"]
    assert suspects.due(("b",), ()) == ["b"]


def test_engines_that_die_before_any_step_are_given_up() -> None:
    suspects = Suspects()
    deaths = [suspects.died((), ("a",), has_progressed=False) for _ in range(MOST_FUTILE + 1)]
    assert [death.num_futile for death in deaths] == list(range(1, MOST_FUTILE + 2))
    assert [death.is_hopeless for death in deaths] == [False] * MOST_FUTILE + [True]


def test_engines_that_die_in_every_step_are_given_up() -> None:
    world = World(names(64), poison=dict.fromkeys(names(64), 0), seats=64)
    world.run()
    assert world.is_hopeless
    assert len(world.deaths) == MOST_TOKENLESS + 1


poisons = st.dictionaries(st.integers(0, 40), st.integers(0, 3), max_size=3)


@given(count=st.integers(1, 40), seats=st.integers(1, 12), poison=poisons)
@settings(deadline=None)
def test_all_who_kill_are_condemned_and_nobody_else(count: int, seats: int, poison: dict[int, int]) -> None:
    guilty = {f"r{idx}": token for idx, token in poison.items() if idx < count}
    world = World(names(count), guilty, seats=seats)

    world.run()

    assert not world.is_hopeless
    assert sorted(world.condemned) == sorted(guilty)
    assert not world.open_ids
    assert len(world.deaths) <= len(guilty) * 2 * (seats.bit_length() + 2)


@given(
    count=st.integers(1, 20),
    seats=st.integers(1, 8),
    poison=poisons,
    outside=st.frozensets(st.integers(1, 60), max_size=6),
)
@settings(deadline=None)
def test_deaths_from_outside_lose_nothing(
    count: int, seats: int, poison: dict[int, int], outside: frozenset[int]
) -> None:
    guilty = {f"r{idx}": token for idx, token in poison.items() if idx < count}
    world = World(names(count), guilty, seats=seats, outside=outside)
    world.run()
    assert not world.is_hopeless
    assert set(guilty) <= set(world.condemned)
    assert not world.open_ids
    # An innocent one is blamed only if it was alone in two steps that were killed, the last of its deaths being one.
    for innocent in set(world.condemned) - set(guilty):
        assert world.deaths.count((innocent,)) >= 2
