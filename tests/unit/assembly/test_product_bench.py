"""Products timed in the native executor: every tactic runs, gives the same bits, and takes some time."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.assembly.product_bench import ProductBench, random_codes
from trivium.compile.formats import FORMATS
from trivium.compile.tuner.measure import equal_tactics, time_tactics
from trivium.compile.tuner.space import Case, Site
from trivium.kernels import native
from trivium.weights.kinds import dequantize

pytestmark = pytest.mark.skipif(not native.describe().is_present, reason="needs the native module")

SITES = [
    Site("store", 256, (64, 32, 32), ("q4_k", "q4_k", "q6_k"), "q8"),
    Site("add", 64, (96,), ("i4m_g32",), "q8"),
    Site("gated", 96, (64, 64), ("i4_g32",) * 2, "q8"),
    Site("store", 64, (40,), ("bf16",), "bf16"),
    Site("gated", 64, (32, 32), ("f32",) * 2, "f32t"),
]


@pytest.mark.parametrize("num_rows", [1, 17])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_tactics_give_the_same_bits_and_are_timed(site: Site, num_rows: int) -> None:
    prepared = ProductBench().prepare(Case(site, num_rows))
    assert prepared.tactics[0] == "auto"
    assert (len(prepared.tactics) > 1) == bool({"q4_k", "i4m_g32", "i4_g32"} & set(site.formats))
    equal, different = equal_tactics(prepared)
    assert (tuple(equal), different) == (tuple(prepared.tactics), [])
    assert np.isfinite(prepared.result("auto")).all()
    assert np.abs(prepared.result("auto")).max() > 0
    seconds = time_tactics(prepared, equal, 2)
    assert all(len(found) == 2 and min(found) > 0 for found in seconds.values())


@pytest.mark.parametrize("form", FORMATS)
def test_random_weights_are_finite_and_of_ordinary_size_in_every_format(form: str) -> None:
    record = random_codes(form, 32, 256, np.random.default_rng(3))
    record.check()
    values = dequantize(record)
    assert np.isfinite(values).all()
    assert 1e-3 < np.abs(values).max() < 1e4
