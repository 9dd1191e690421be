"""Random numbers: the published vectors, the scalar twin, and that no address repeats."""

from __future__ import annotations

import numpy as np
import pytest

from support.scalar_sampler import philox_block, uniform
from trivium.sampling.philox import philox4x32, uniforms

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert philox4x32(np.array([counter], np.uint64), np.array([key], np.uint64))[0].tolist() == list(words)
    assert philox_block(counter, key) == list(words)


def test_uniforms_equal_the_scalar_ones_over_the_whole_seed_range() -> None:
    generator = np.random.default_rng(5)
    seeds = [0, 1, 2**32, 2**64 - 1, *(int(s) for s in generator.integers(0, 2**63, 50))]
    choices = [int(c) for c in generator.integers(0, 128, len(seeds))]
    positions = [int(p) for p in generator.integers(0, 2**31, len(seeds))]
    wanted = [uniform(*address) for address in zip(seeds, choices, positions, strict=True)]
    assert uniforms(seeds, choices, positions).tolist() == wanted


def test_each_part_of_the_address_changes_the_number() -> None:
    base = uniforms([7], [1], [9])[0]
    others = [
        uniforms([8], [1], [9])[0],
        uniforms([7 + 2**32], [1], [9])[0],
        uniforms([7], [2], [9])[0],
        uniforms([7], [1], [10])[0],
        uniforms([7], [1], [9], draw=1)[0],
    ]
    assert len({base, *others}) == 6


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    numbers = uniforms([3] * 20000, [0] * 20000, list(range(20000)))
    counts = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, 0.1 %
