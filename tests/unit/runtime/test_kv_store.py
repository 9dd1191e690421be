"""The KV store: slots, gathers, copies, and the bytes of a page."""

from __future__ import annotations

import numpy as np
import pytest

from support.tiny_steps import ExactKernels
from trivium.base.errors import InternalError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.kv_store import KVStore

SPEC = KVSpec((KVGroup("full", (0, 2), 128), KVGroup("window", (1,), 64, 3)), page_len=4)


def store() -> KVStore:
    return KVStore(SPEC, (5, 3), num_kv_heads=2, head_width=8, library=NumpyLibrary(ExactKernels()))


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_what_is_written_at_slots_is_gathered_by_pages_in_order() -> None:
    kv, k = store(), random(6, 2, 8)
    # Six tokens at positions 0..5 in pages 3 and 1: slots 12 13 14 15, then 4 5.
    kv.write(2, np.array([12, 13, 14, 15, 4, 5]), k, -k)
    keys, values = kv.gather(2, np.array([3, 1]))
    np.testing.assert_array_equal(keys[:, :6], k.transpose(1, 0, 2))
    np.testing.assert_array_equal(values[:, :6], -k.transpose(1, 0, 2))
    np.testing.assert_array_equal(keys[:, 6:], 0)
    np.testing.assert_array_equal(kv.gather(0, np.array([3, 1]))[0], 0)


def test_fresh_pages_hold_finite_bytes() -> None:
    kv = store()
    assert np.isfinite(kv.gather(1, np.arange(3))[0]).all()
    assert np.isfinite(kv.gather(0, np.arange(5))[1]).all()


def test_a_copied_page_carries_all_layers_of_its_group() -> None:
    kv, k = store(), random(4, 2, 8)
    for layer in (0, 2):
        kv.write(layer, np.arange(4), k * (layer + 1), k)
    kv.copy_page(0, 0, 4)
    for layer in (0, 2):
        np.testing.assert_array_equal(kv.gather(layer, np.array([4]))[0], (k * (layer + 1)).transpose(1, 0, 2))


def test_an_exported_page_comes_back_elsewhere() -> None:
    kv, k = store(), random(4, 2, 8)
    kv.write(0, np.arange(4), k, -k)
    content = kv.export_page(0, 0)
    assert len(content) == 2 * 2 * 4 * 2 * 8 * 4
    other = store()
    other.import_page(0, 3, content)
    for mine, theirs in zip(kv.gather(0, np.array([0])), other.gather(0, np.array([3])), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert other.export_page(0, 3) == content


def test_bytes_that_are_no_page_are_refused() -> None:
    kv = store()
    with pytest.raises(InternalError, match="has not 12 bytes"):
        kv.import_page(0, 0, b"\0" * 12)
    with pytest.raises(InternalError, match="has not 3 bytes"):
        kv.import_page(0, 0, b"abc")
    with pytest.raises(InternalError, match="is not finite"):
        kv.import_page(1, 0, np.full(2 * 4 * 2 * 8, np.nan, np.float32).tobytes())


def test_pages_groups_and_layers_that_do_not_exist_are_refused() -> None:
    kv = store()
    with pytest.raises(InternalError, match="KV group 1 has no page 3"):
        kv.copy_page(1, 0, 3)
    with pytest.raises(InternalError, match="KV group 2 has no page 0"):
        kv.export_page(2, 0)
    with pytest.raises(InternalError, match="no KV group has layer 3"):
        kv.group_of(3)
    with pytest.raises(InternalError, match="1 page counts for 2 KV groups"):
        KVStore(SPEC, (5,), num_kv_heads=2, head_width=8, library=NumpyLibrary(ExactKernels()))


def test_bytes_are_counted_over_groups() -> None:
    # The factors are: pages, tokens in a page, layers, keys and values, G, D, bytes of a float.
    assert store().num_bytes == 5 * 4 * 2 * 2 * 2 * 8 * 4 + 3 * 4 * 1 * 2 * 2 * 8 * 4
