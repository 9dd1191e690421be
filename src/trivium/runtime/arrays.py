"""Array libraries of the reference executor: NumPy with our kernels, and torch on any device.

A library binds parameters in the forms that their uses need, and multiplies in a fixed order. NumPy's own product is
not used: at one row it gives other bits than for the same row in a larger product.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trivium.base.errors import ConfigError
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float32Array = NDArray[np.float32]


class ProductKernels(Protocol):
    """Row-independent products: what `kernels.gemm` offers."""

    def pack(self, weight: Float32Array, /) -> Any:
        """Lay out [N, K] for `gemm`."""
        ...

    def gemm(self, a: Float32Array, packed: Any, /) -> Float32Array:
        """[M, K] times packed [N, K] -> [M, N]."""
        ...

    def unpack_rows(self, packed: Any, ids: NDArray[np.integer], /) -> Float32Array:
        """Copy rows [T, K] of packed [N, K]."""
        ...

    def matmul_nt(self, a: Float32Array, b: Float32Array, /) -> Float32Array:
        """[B, M, K] times [B, N, K] -> [B, M, N]."""
        ...

    def matmul_nn(self, a: Float32Array, b: Float32Array, /) -> Float32Array:
        """[B, M, K] times [B, K, N] -> [B, M, N]."""
        ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter [N, K], bound in the forms that the graph uses it in."""

    table: Any
    """The array itself, when rows are looked up in it and in nothing else; else `None`."""
    packed: Any
    """What the product reads, when it is multiplied by; else `None`. Rows can be read from it too."""
    num_bytes: int


class NumpyLibrary:
    """NumPy arrays, products by the project's kernels."""

    xp: Any = np

    def __init__(self, kernels: ProductKernels) -> None:
        self._kernels = kernels

    def asarray(self, host: Any) -> Any:
        """Return the array itself."""
        return host

    def to_host(self, array: Any) -> Float32Array:
        """Return a C-contiguous float32 array, the same one where it is that already."""
        return np.ascontiguousarray(array, np.float32)

    def bind_matrix(self, weight: Float32Array, *, is_multiplied: bool) -> Matrix:
        """Keep `weight` [N, K] packed if it is multiplied by, else as a table; a tied embedding is kept once."""
        table = np.ascontiguousarray(weight, np.float32)
        if is_multiplied:
            return Matrix(None, self._kernels.pack(table), table.nbytes)
        return Matrix(table, None, table.nbytes)

    def gemm(self, x: Any, weight: Matrix) -> Any:
        """[T, K] times [N, K] -> [T, N]."""
        return self._kernels.gemm(x, weight.packed)

    def rows(self, weight: Matrix, ids: Any) -> Any:
        """Copy rows."""
        if weight.table is None:
            return self._kernels.unpack_rows(weight.packed, ids)
        return np.take(weight.table, ids, axis=0)

    def matmul_nt(self, a: Any, b: Any) -> Any:
        """[B, M, K] times [B, N, K] -> [B, M, N]."""
        return self._kernels.matmul_nt(a, b)

    def matmul_nn(self, a: Any, b: Any) -> Any:
        """[B, M, K] times [B, K, N] -> [B, M, N]."""
        return self._kernels.matmul_nn(a, b)

    def take_pages(self, pages: Any, ids: Any, *, out: Any) -> Any:
        """Copy pages [G, ids, page_len, D] of [G, N, page_len, D] into `out`; every id is below N."""
        # Clipping never happens; the other modes of `take` go through a second buffer.
        return np.take(pages, ids, axis=1, out=out, mode="clip")

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Allocate float32 zeros."""
        return np.zeros(shape, np.float32)

    def sparse_zeros(self, shape: tuple[int, ...]) -> Any:
        """Allocate float32 zeros of which little may ever be written: memory is taken in the smallest pages.

        With huge pages, the first token of a request would take and clear 2 MiB for every layer and head.

        Raises:
            ConfigError: There is no room for them.
        """
        num_bytes = 4 * math.prod(shape)
        if not num_bytes or not hasattr(mmap, "MADV_NOHUGEPAGE"):
            return np.zeros(shape, np.float32)
        try:
            memory = mmap.mmap(-1, num_bytes)
        except (OSError, MemoryError) as error:
            raise ConfigError(
                f"{format_bytes(num_bytes)} of KV memory cannot be had: {error}. Give it less with --kv-cache-memory"
            ) from error
        with contextlib.suppress(OSError):  # a kernel without huge pages has nothing to be told
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return np.frombuffer(memory, np.float32).reshape(shape)


class TorchLibrary:
    """Torch tensors on one device, products by torch; values to compare with, not the same bits."""

    def __init__(self, device: str) -> None:
        """Load torch.

        Raises:
            ConfigError: Torch is not installed, or does not know the device.
        """
        # Torch is an optional extra and takes seconds to import.
        try:
            torch: Any = import_module("torch")
            xp: Any = import_module("array_api_compat.torch")
        except ImportError as error:
            raise ConfigError("array_library = torch needs torch; install trivium[hf]") from error
        self.xp = xp
        self._torch = torch
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            raise ConfigError(f"device {device!r} is unknown to torch: {error}") from error

    def asarray(self, host: Any) -> Any:
        """Move to the device; integers become int64, which torch indexes with."""
        is_index = host.dtype.kind in "iu"
        return self._torch.as_tensor(host.astype(np.int64) if is_index else host, device=self._device)

    def to_host(self, array: Any) -> Float32Array:
        """Move to host memory."""
        return np.ascontiguousarray(array.cpu().numpy(), np.float32)

    def bind_matrix(self, weight: Float32Array, *, is_multiplied: bool) -> Matrix:
        """Move to the device; table and product share one tensor."""
        tensor = self.asarray(np.array(weight, np.float32))
        return Matrix(tensor, tensor, weight.nbytes)

    def gemm(self, x: Any, weight: Matrix) -> Any:
        """[T, K] times [N, K] -> [T, N]."""
        return self._torch.nn.functional.linear(x, weight.packed)

    def rows(self, weight: Matrix, ids: Any) -> Any:
        """Copy rows of the table."""
        return self._torch.index_select(weight.table, 0, ids)

    def matmul_nt(self, a: Any, b: Any) -> Any:
        """[B, M, K] times [B, N, K] -> [B, M, N]."""
        return self._torch.matmul(a, b.mT)

    def matmul_nn(self, a: Any, b: Any) -> Any:
        """[B, M, K] times [B, K, N] -> [B, M, N]."""
        return self._torch.matmul(a, b)

    def take_pages(self, pages: Any, ids: Any, *, out: Any) -> Any:
        """Copy pages [G, ids, page_len, D] of [G, N, page_len, D] into `out`."""
        return self._torch.index_select(pages, 1, ids, out=out)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Allocate float32 zeros."""
        return self._torch.zeros(shape, dtype=self._torch.float32, device=self._device)

    def sparse_zeros(self, shape: tuple[int, ...]) -> Any:
        """Allocate float32 zeros, as `zeros` does."""
        return self.zeros(shape)


Library = NumpyLibrary | TorchLibrary
