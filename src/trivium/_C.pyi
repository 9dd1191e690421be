"""
Native kernels of Trivium. Use trivium.kernels, which checks arguments and has a stand-in for each.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def detected_isa() -> str:
    """
    Name of the strongest instruction set that this processor runs: scalar, avx2, avxvnni, avx512, avx512vnni or amx.
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

PANEL_COLUMNS: int = 32

def weight_formats() -> list[str]:
    """Names of the formats that packed weights have."""

def panel_bytes(format: str, depth: int) -> int:
    """Bytes of one panel over depth K."""

def pack_codes(format: str, codes: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], scales: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, mins: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, zeros: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, supers: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, subs: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, super_mins: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None, sub_mins: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None = None) -> None:
    """Lay out a record of codes in panels."""

def unpack_rows(format: str, panels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], num_cols: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """out [T, K] = rows `ids` [T] of packed panels, as floats."""

def multiply(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], format: str, panels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], isa: str | None = None) -> None:
    """
    out [M, N] = x [M, K], in the operand format of `format`, times packed panels, transposed.
    """

MAX_ADAPTERS: int = 4096

class PreparedAdapter:
    """An adapter as steps read it."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""

class Adapters:
    """The adapters that a program's steps may use, by slot."""

    def __init__(self, max_rows: int, max_sites: int, products: Sequence[tuple[int, int]]) -> None: ...

    def prepare(self, factors: Sequence[tuple[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], float] | None]) -> PreparedAdapter:
        """
        Copy an adapter: per product (A [r, K], B [N, r], scale), or None. From any thread, also while steps run.
        """

    def load(self, slot: int, prepared: PreparedAdapter) -> None:
        """Put an adapter into a free slot. Between steps."""

    def unload(self, slot: int) -> None:
        """Free a slot."""

class OperandLayout:
    """How rows of activations are stored for a product."""

    def __init__(self, format: str, depth: int, sums: Sequence[tuple[int, int]]) -> None: ...

    @property
    def row_bytes(self) -> int: ...

class Weight:
    """A packed matrix; keep its panels alive."""

    def __init__(self, format: str, panels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], num_cols: int, depth: int) -> None: ...

class KVStore:
    """The pages of one KV group."""

    def __init__(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], type: str, num_layers: int, num_pages: int, num_heads: int, width: int) -> None: ...

def kv_store_bytes(type: str, num_layers: int, num_pages: int, num_heads: int, width: int) -> int:
    """Bytes of a KV store."""

def query_factor(scale: float, soft_cap: float) -> float:
    """What queries are multiplied with before they are rounded."""

def read_operand(layout: OperandLayout, arena: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], at: int, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]) -> None:
    """Rows of an operand in the arena as floats [rows, depth]."""

class Program:
    """A flat list of instructions over one arena."""

    def __init__(self) -> None: ...

    def embed(self, table: Weight, width: int, scale: float, out_at: int) -> None: ...

    def rope_table(self, rope: int, half: int, factor: float, out_at: int) -> None: ...

    def norm(self, width: int, eps: float, b_eps: float, a_at: int, b_at: int | None, b_weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, rows: str, gathers: bool, sum_at: int | None, floats_at: int | None, layout: OperandLayout | None, operand_at: int | None) -> None: ...

    def project(self, parts: Sequence[Weight], sums: Sequence[int], layout: OperandLayout, operand_at: int, rows: str, epilogue: str, bias: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, delta_at: int | None, delta_stride: int, scale: float, soft_cap: float, activation: str, out_at: int | None, out_stride: int, out_layout: OperandLayout | None, out_operand_at: int | None, tactics: Sequence[tuple[int, str]], tactic: str, delta_of: Sequence[int]) -> None: ...

    def adapter_delta(self, adapters: Adapters, products: Sequence[int], rows: str, x_at: int, out_at: int) -> None: ...

    def rope_kv(self, store: KVStore, group: int, layer: int, num_heads: int, norm: str, eps: float, q_norm: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, k_norm: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, qkv_at: int, qkv_stride: int, table_at: int | None, half: int, query_factor: float, q_at: int) -> None: ...

    def attend(self, store: KVStore, group: int, layer: int, num_heads: int, window: int, soft_cap: float, q_at: int, out_at: int | None, layout: OperandLayout | None, operand_at: int | None) -> None: ...

    def plain(self, op: str, rows: str, width: int, a_at: int, b_at: int | None, number: float, out_at: int) -> None: ...

    def plain_norm(self, rows: str, count: int, width: int, eps: float, weight: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], x_at: int, out_at: int) -> None: ...

    def split(self, rows: str, count: int, sizes: Sequence[int], x_at: int, outs_at: Sequence[int]) -> None: ...

    def __len__(self) -> int: ...

    def limit(self, max_tokens: int, max_rows: int, vocab_size: int, page_len: int, groups: Sequence[tuple[int, int]], stores: Sequence[KVStore]) -> None:
        """Set what steps are checked by; groups are (pages, window or 0)."""

    def seal(self) -> None:
        """Allocate scratch; after the last instruction."""

    def run(self, arena: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], token_ids: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], kv_lens: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], logit_rows: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], embeds: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)] | None, copies: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)], page_tables: Sequence, ropes: Sequence, seconds: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')] | None = None, part: tuple[int, int] | None = None, adapter_slot: Annotated[NDArray[numpy.int32], dict(order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Check a step and run it, or a part of the instructions; adds each one's seconds to `seconds`.
        """

def attention_kernels() -> list[tuple[str, str]]:
    """
    All compiled attention kernels as (instruction set, name), strongest first.
    """

def kv_page_bytes(store: KVStore) -> int:
    """Bytes of one page, all layers."""

def kv_export_page(store: KVStore, page: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Copy a page, all layers, to out [kv_page_bytes]."""

def kv_import_page(store: KVStore, page: int, content: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """Write what kv_export_page gave; refuses numbers that are not finite."""

def kv_copy_pages(store: KVStore, copies: Sequence[tuple[int, int]]) -> None:
    """Copy pages (source, target), all layers, in the order given."""

def kv_write_token(store: KVStore, layer: int, page: int, head: int, slot: int, key: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], value: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """Store one token's key and value [D]."""

def kv_read_token(store: KVStore, layer: int, page: int, head: int, slot: int, key: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], value: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Read back one token's rounded key and value [D]."""

class Paging:
    """Requests, tokens and pages of a step; keep its arrays alive."""

    def __init__(self, starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], kv_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], page_table: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

def rope_table(paging: Paging, frequencies: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], variants: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], factor: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu')]) -> None:
    """Cosines and sines [T, 2, half] of a step's tokens."""

def rope_and_store(paging: Paging, store: KVStore, layer: int, qkv: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], norms: tuple[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None, eps: float, table: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)] | None, query_factor: float, queries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], isa: str | None = None) -> None:
    """
    Norm, rotate and round qkv [T, (H + 2 G) * D]; queries [T, H, D] to bytes, keys and values to pages.
    """

def attend(paging: Paging, store: KVStore, layer: int, queries: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], window: int, soft_cap: float, out: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], isa: str | None = None) -> None:
    """Attended rows [T, H * D] of one layer."""

SAMPLE_ROW_BYTES: int = 96

def sample_kernels() -> list[tuple[str, str]]:
    """
    All compiled sampler levels as (instruction set, name), strongest first.
    """

def sample(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), device='cpu', writable=False)], records: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], lists: list, masks: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), device='cpu', writable=False)] | None, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], errors: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], chosen: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')] | None, reports: tuple[Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], Annotated[NDArray[numpy.float64], dict(shape=(None, None), order='C', device='cpu')]] | None, isa: str | None = None) -> int:
    """
    Draw or score one token per row of logits [R, V]; returns how many rows have an error.
    """
