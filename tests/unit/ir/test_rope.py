"""Frequencies of every rope kind, and tables whose rows know only their own token."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.config.model import RopeConfig
from trivium.ir.rope import rope_angles, rope_frequencies, rope_variant

PLAIN = RopeConfig(rotary_dim=16, original_max_positions=64)
ROPES = {
    "default": PLAIN,
    "linear": replace(PLAIN, kind="linear", factor=4.0),
    "dynamic": replace(PLAIN, kind="dynamic", factor=2.0),
    "llama3": replace(PLAIN, kind="llama3", factor=8.0),
    "yarn": replace(PLAIN, kind="yarn", factor=4.0),
    "longrope": replace(
        PLAIN,
        kind="longrope",
        factor=4.0,
        short_factor=tuple(1.0 + 0.1 * i for i in range(8)),
        long_factor=tuple(2.0 + i for i in range(8)),
    ),
}


def exact_frequencies(rope: RopeConfig) -> np.ndarray:
    return rope.theta ** -(np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim)


def test_default_frequencies_are_powers_of_theta() -> None:
    frequencies, scale = rope_frequencies(PLAIN, 10)
    np.testing.assert_allclose(frequencies, exact_frequencies(PLAIN), rtol=3e-7)
    assert frequencies.dtype == np.float32
    assert scale == 1.0


def test_linear_divides_every_frequency() -> None:
    frequencies, _ = rope_frequencies(ROPES["linear"], 10)
    np.testing.assert_allclose(frequencies, exact_frequencies(PLAIN) / 4, rtol=3e-7)


def test_dynamic_is_unscaled_up_to_the_original_length_and_grows_with_reach_beyond() -> None:
    rope = ROPES["dynamic"]
    at_limit, beyond, further = (rope_frequencies(rope, reach)[0] for reach in (64, 65, 128))
    np.testing.assert_array_equal(at_limit, rope_frequencies(PLAIN, 64)[0])
    assert at_limit[-1] > beyond[-1] > further[-1]
    theta = rope.theta * (2.0 * 128 / 64 - 1.0) ** (16 / 14)
    np.testing.assert_allclose(further, exact_frequencies(replace(PLAIN, theta=theta)), rtol=5e-7)


def test_llama3_keeps_short_wavelengths_and_divides_long_ones() -> None:
    frequencies, _ = rope_frequencies(ROPES["llama3"], 10)
    plain = exact_frequencies(PLAIN)
    wavelengths = 2 * math.pi / plain
    np.testing.assert_allclose(frequencies[wavelengths < 16], plain[wavelengths < 16], rtol=5e-7)
    np.testing.assert_allclose(frequencies[wavelengths > 64], plain[wavelengths > 64] / 8, rtol=5e-7)
    between = (wavelengths > 16) & (wavelengths < 64)
    assert between.any()
    assert np.all((frequencies[between] < plain[between]) & (frequencies[between] > plain[between] / 8))


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_raises_attention() -> None:
    frequencies, scale = rope_frequencies(replace(ROPES["yarn"], original_max_positions=1024), 10)
    plain = exact_frequencies(PLAIN)
    assert frequencies[0] == pytest.approx(plain[0], rel=5e-7)
    assert frequencies[-1] == pytest.approx(plain[-1] / 4, rel=5e-7)
    assert scale == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_attention_factor_is_given_or_a_ratio_of_mscales() -> None:
    assert rope_frequencies(replace(ROPES["yarn"], attention_factor=1.5), 10)[1] == 1.5
    ratio = (0.1 * 2 * math.log(4) + 1) / (0.1 * 3 * math.log(4) + 1)
    assert rope_frequencies(replace(ROPES["yarn"], mscale=2.0, mscale_all_dim=3.0), 10)[1] == pytest.approx(ratio)


def test_longrope_takes_the_long_list_only_beyond_the_original_length() -> None:
    rope = ROPES["longrope"]
    short, scale = rope_frequencies(rope, 64)
    long, long_scale = rope_frequencies(rope, 65)
    np.testing.assert_allclose(short, exact_frequencies(PLAIN) / np.array(rope.short_factor), rtol=5e-7)
    np.testing.assert_allclose(long, exact_frequencies(PLAIN) / np.array(rope.long_factor), rtol=5e-7)
    assert scale == long_scale == pytest.approx(math.sqrt(1 + math.log(4) / math.log(64)))


@pytest.mark.parametrize("kind", sorted(ROPES))
@given(reaches=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_equal_variants_mean_equal_tables(kind: str, reaches: tuple[int, int]) -> None:
    rope = ROPES[kind]
    tables = [rope_frequencies(rope, reach)[0] for reach in reaches]
    variants = [rope_variant(rope, reach) for reach in reaches]
    assert (variants[0] == variants[1]) == np.array_equal(tables[0], tables[1])


@pytest.mark.parametrize("kind", sorted(ROPES))
@given(tokens=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 200)), min_size=1, max_size=40))
def test_a_row_depends_on_its_own_token_alone(kind: str, tokens: list[tuple[int, int]]) -> None:
    positions, reaches = (np.array(column, np.int32) for column in zip(*tokens, strict=True))
    together = rope_angles(ROPES[kind], positions, reaches)
    assert together.shape == (len(tokens), 2, 8)
    assert together.dtype == np.float32
    for row in range(len(tokens)):
        alone = rope_angles(ROPES[kind], positions[row : row + 1], reaches[row : row + 1])
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_table_holds_cosines_then_sines_times_the_attention_factor() -> None:
    rope = replace(ROPES["yarn"], attention_factor=2.0)
    angles = np.float64(3.0) * rope_frequencies(rope, 10)[0].astype(np.float64)
    table = rope_angles(rope, [3], [10])
    np.testing.assert_allclose(table[0], [2 * np.cos(angles), 2 * np.sin(angles)], rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(ROPES))
def test_a_step_without_tokens_has_a_table_without_rows(kind: str) -> None:
    assert rope_angles(ROPES[kind], [], []).shape == (0, 2, 8)
