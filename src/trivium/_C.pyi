"""
Native kernels of Trivium. Use trivium.kernels, which checks arguments and has a stand-in for each.
"""

from typing import Annotated

import numpy
from numpy.typing import NDArray


def detected_isa() -> str:
    """
    Name of the strongest instruction set that this processor runs: scalar, avx2, avxvnni, avx512 or avx512vnni.
    """

def active_isa() -> str:
    """
    Name of the instruction set that kernels are chosen by: the detected one, lowered by TRIVIUM_ISA.
    """

def compiler() -> str:
    """Compiler and version that built this module."""

def kernel_version() -> str:
    """Digest of the sources of the kernels."""

def usable_cores() -> int:
    """Cores this process may use, by affinity and cgroup quota."""

def num_threads() -> int:
    """Threads that kernels use, the caller included."""

def machine_limits() -> tuple[float, float, float, float, float]:
    """
    Measure what all threads do at most, per second: bytes of memory, of cache, operations in int8, bf16, f32.
    """

def set_num_threads(count: int) -> None:
    """Set the number of threads, 1 to 1024."""

PANEL_WIDTH: int = 32

def gemm_kernels() -> list[tuple[str, str]]:
    """All compiled GEMM kernels as (instruction set, name), strongest first."""

def pack(weight: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """Pack weight [N, K] into out [panels, K, PANEL_WIDTH]."""

def gemm(a: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], panels: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu')], isa: str | None = None) -> None:
    """out [M, N] = a [M, K] times the packed weight [N, K], transposed."""

def matmul_nt(a: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu')], isa: str | None = None) -> None:
    """out [B, M, N] = a [B, M, K] times b [B, N, K], transposed."""

def matmul_nn(a: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], b: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), device='cpu')], isa: str | None = None) -> None:
    """out [B, M, N] = a [B, M, K] times b [B, K, N]."""
