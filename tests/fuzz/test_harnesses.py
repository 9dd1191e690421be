"""Every harness holds on its seeds and on inputs that hypothesis draws; `make fuzz` tries far more."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.harnesses import HARNESSES, SEEDS

names = pytest.mark.parametrize("name", sorted(HARNESSES))


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """Draw bytes, and seeds with a part replaced."""
    changed = st.tuples(
        st.sampled_from(SEEDS[name]), st.integers(0, 80), st.integers(0, 20), st.binary(max_size=12)
    ).map(lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :])
    return st.one_of(st.binary(max_size=80), changed)


@names
def test_a_harness_holds_on_its_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        HARNESSES[name](seed)


@names
def test_a_harness_holds_on_what_is_drawn(name: str) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=inputs(name))
    def hold(data: bytes) -> None:
        HARNESSES[name](data)

    hold()


@pytest.mark.slow
@names
def test_a_harness_holds_on_much_more(name: str) -> None:
    @settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=inputs(name))
    def hold(data: bytes) -> None:
        HARNESSES[name](data)

    hold()
