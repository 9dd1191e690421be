"""Tensors of every storage format, made of random blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trivium.weights.formats import FORMATS
from trivium.weights.mapped import MappedFile
from trivium.weights.stored import StoredTensor

HALVES_AT = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
"""Where a block has its float16 scales."""
EXTREMES = np.array([0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 6.0975552e-05, 65504.0, -65504.0, 1.0], np.float16)


def random_blocks(name: str, num_rows: int, blocks_per_row: int, *, seed: int = 0) -> np.ndarray:
    """Bytes of rows: every bit pattern of codes and group scales; finite float16 scales, some of them extreme."""
    known, rng = FORMATS[name], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_rows * blocks_per_row, known.block_bytes), dtype=np.uint8)
    for at in HALVES_AT.get(name, []):
        ordinary = rng.standard_normal(len(blocks)).astype(np.float16)
        scales = np.where(rng.random(len(blocks)) < 0.5, rng.choice(EXTREMES, len(blocks)), ordinary)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    if name in {"F32", "F16", "BF16"}:
        values = rng.standard_normal((len(blocks), 1), np.float32)
        blocks[:] = {"F32": values, "F16": values.astype(np.float16), "BF16": values.view(np.uint16)[:, 1:]}[name].view(
            np.uint8
        )
    return blocks.reshape(num_rows, -1)


def stored(tmp_path: Path, name: str, by_row: np.ndarray, *, shape: tuple[int, ...] | None = None) -> StoredTensor:
    path = tmp_path / f"{name}.bin"
    path.write_bytes(b"x" * 7 + by_row.tobytes())
    depth = by_row.shape[1] // FORMATS[name].block_bytes * FORMATS[name].block_len
    return StoredTensor("some.weight", shape or (len(by_row), depth), name, MappedFile(path), 7)


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    is_number = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours.view(np.uint32)[is_number], theirs.view(np.uint32)[is_number])
    assert np.isnan(ours[~is_number]).all()
