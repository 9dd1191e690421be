"""The nouns of this package: a tensor as it lies in a file, and a checkpoint that holds many.

Nothing here knows a file format; the readers fill these records. Tensors are lazy: no byte of a tensor is read
before `float32` or `raw` is called.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from trivium.weights.formats import SIZES, to_float32
from trivium.weights.mapped import MappedFile

CheckpointFormat = Literal["safetensors", "gguf"]

_SAMPLE_BYTES = 1024


class Tensor(Protocol):
    """A tensor of a checkpoint, however many pieces of its files it is made of."""

    @property
    def name(self) -> str:
        """Name in the checkpoint."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major: a projection is [outputs, inputs]."""
        ...

    @property
    def format(self) -> str:
        """Storage format."""
        ...

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size in the files."""
        ...

    @property
    def pieces(self) -> Sequence[StoredTensor]:
        """What it is read from."""
        ...

    def float32(self, rows: NDArray[np.intp] | slice | None = None) -> NDArray[np.float32]:
        """Dequantize all rows of the first axis, or some."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a mapped file.

    Invariants:
        The rows (last axis) are whole blocks of the format, and bytes [offset, offset + num_bytes) lie in the file.
    """

    name: str
    shape: tuple[int, ...]
    """Row-major: a projection is [outputs, inputs]."""
    format: str
    """Name in `formats.SIZES`, such as F32, BF16, Q4_1."""
    file: MappedFile
    offset: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return SIZES[self.format].num_bytes(self.num_elements)

    @property
    def pieces(self) -> Sequence[StoredTensor]:
        """The tensor itself: it lies in the file in one piece."""
        return (self,)

    def raw(self) -> NDArray[np.uint8]:
        """Return the bytes as stored, [num_bytes] uint8, a read-only view of the file."""
        return self.file.bytes(self.offset, self.offset + self.num_bytes)

    def float32(self, rows: NDArray[np.intp] | slice | None = None) -> NDArray[np.float32]:
        """Dequantize.

        Args:
            rows: Which rows of the first axis, in which order; `None` takes all. Only those are dequantized.

        Returns:
            A new array, of `shape` with the first axis as long as `rows`.

        Raises:
            CheckpointError: The format cannot be dequantized.
        """
        packed = self.raw()
        if rows is None:
            return to_float32(packed, self.format, self.shape)
        by_row = packed.reshape(self.shape[0], -1)[rows]
        return to_float32(by_row.reshape(-1), self.format, (len(by_row), *self.shape[1:]))


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: configuration and tensors, from either file format.

    Use as a context manager, or call `close`; tensors must not be read afterwards.
    """

    path: Path
    """The directory in Hugging Face layout, or the .gguf file."""
    format: CheckpointFormat
    hf_config: Mapping[str, Any]
    """Configuration in the layout of a config.json, also for GGUF."""
    generation_config: Mapping[str, Any]
    """Contents of generation_config.json, or what a GGUF file says of it."""
    metadata: Mapping[str, Any]
    """Key-values of a GGUF file; empty for safetensors."""
    tensors: Mapping[str, Tensor]
    """By the name in the file; those that lie there in pieces by the name of the weight they make up."""
    files: Sequence[MappedFile]

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the contents: 64 hexadecimal digits.

        Covers names, shapes, formats, sizes, the configuration, and three samples of every tensor (start, middle,
        end), so that it costs milliseconds; `verify.full_sha256` reads every byte.
        """
        digest = hashlib.sha256()
        for key, value in sorted(self.hf_config.items()):
            digest.update(f"{key}={value!r}\n".encode())
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.shape} {tensor.format}\n".encode())
            for sample in (sample for piece in tensor.pieces for sample in _samples(piece.raw())):
                digest.update(sample.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Give the mapped files back."""
        for file in self.files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _samples(packed: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    # start [0, n), middle [m, m + n), end [size - n, size); small tensors whole
    size = len(packed)
    if size <= 3 * _SAMPLE_BYTES:
        return [packed]
    starts = (0, (size - _SAMPLE_BYTES) // 2, size - _SAMPLE_BYTES)
    return [packed[start : start + _SAMPLE_BYTES] for start in starts]
