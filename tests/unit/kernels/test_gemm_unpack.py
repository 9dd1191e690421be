"""Rows read back from a packed weight are the bits that were packed."""

from __future__ import annotations

import numpy as np
import pytest

from trivium.kernels import gemm, native


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("num_rows", [1, 31, 32, 33, 100])
def test_any_rows_of_a_packed_weight_come_back_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, is_native: bool
) -> None:
    if not is_native:
        monkeypatch.setattr(native, "load", lambda: None)
    weight = np.random.default_rng(num_rows).standard_normal((num_rows, 7)).astype(np.float32)
    ids = np.array([num_rows - 1, 0, num_rows // 2, 0], np.int32)
    rows = gemm.unpack_rows(gemm.pack(weight), ids)
    np.testing.assert_array_equal(rows, weight[ids], strict=True)
    assert rows.flags.c_contiguous
