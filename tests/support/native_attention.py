"""Keys and values in tiled pages, and what one layer does with them, as plain array functions.

The native executor runs the same functions from a plan, many layers in one call; tests run them one by one through
these. There is no NumPy stand-in: the reference executor keeps its keys and values in a store of its own
(`runtime.kv_store`) and attends by `ir.attention`, whose definition the native kernels are tested against.

The law (csrc/ops/attention/attention.h): a row's bits depend on its query, its position and its request's keys alone;
not on the batch, on how a prompt is cut in chunks, on which pages hold it, or on the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trivium.base.errors import ConfigError, InternalError, ensure
from trivium.kernels import native

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    Float32Array = NDArray[np.float32]
    Int32Array = NDArray[np.int32]

KVDType: TypeAlias = Literal["bf16", "f32", "i8"]
"""How keys and values are stored; i8 has one scale per token and KV head."""

PAGE_LEN = native.PAGE_LEN
"""Tokens per page."""

_LINE_BYTES = 64


def _module() -> ModuleType:
    module = native.load()
    if module is None:
        raise ConfigError("attention over tiled pages needs the native kernels; the reference executor does not")
    return module


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paging:
    """A step's requests, tokens and pages, in the fields of `schedule.step.Step`."""

    starts: Int32Array
    """[B + 1]"""
    positions: Int32Array
    """[T]"""
    kv_lens: Int32Array
    """[B]"""
    page_table: Int32Array
    """[B, pages], -1 where a page is not held."""

    def _native(self) -> Any:
        return _module().Paging(self.starts, self.positions, self.kv_lens, self.page_table)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadNorms:
    """RMS norms of queries and keys before their rotation."""

    q_weight: Float32Array
    """[D] for a norm over each head; [H * D] for one over all heads."""
    k_weight: Float32Array
    """[D], or [G * D]."""
    eps: float


class KVPages:
    """One KV group's keys and values: [layers][pages][KV heads], drawn in csrc/ops/attention/pages.h.

    Bytes of slots that hold no token are never multiplied with anything, so they may be anything.
    """

    def __init__(self, dtype: KVDType, *, num_layers: int, num_pages: int, num_kv_heads: int, head_width: int) -> None:
        """Allocate zeroed pages; pages that nobody writes take no memory.

        Raises:
            ConfigError: The native kernels are missing.
            InternalError: The width is odd, or above 512; or the type is unknown.
        """
        self.dtype = dtype
        self.head_width = head_width
        self.num_kv_heads = num_kv_heads
        shape = {
            "type": dtype,
            "num_layers": num_layers,
            "num_pages": num_pages,
            "num_heads": num_kv_heads,
            "width": head_width,
        }
        try:
            num_bytes = _module().kv_store_bytes(**shape)
        except ValueError as error:
            raise InternalError(str(error)) from None
        buffer = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
        start = -buffer.ctypes.data % _LINE_BYTES
        self.num_bytes: int = num_bytes
        self.native: Any = _module().KVStore(data=buffer[start : start + num_bytes], **shape)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers."""
        return int(_module().kv_page_bytes(self.native))

    def copy_pages(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy pages (source, target), all layers, in the order given: a target may be a later source.

        Raises:
            InternalError: There is no such page.
        """
        _call("kv_copy_pages", self.native, list(copies))

    def export_page(self, page: int) -> bytes:
        """Return the bytes of one page, all layers, in this processor's byte order and this store's type.

        Raises:
            InternalError: There is no such page.
        """
        content = np.empty(self.page_bytes, np.uint8)
        _call("kv_export_page", self.native, page, content)
        return content.tobytes()

    def import_page(self, page: int, content: bytes) -> None:
        """Write what `export_page` gave.

        Raises:
            InternalError: There is no such page, the length is not a page's, or a number in it is not finite; then
                nothing is written.
        """
        _call("kv_import_page", self.native, page, np.frombuffer(content, np.uint8))

    def write_token(self, layer: int, page: int, head: int, slot: int, key: Float32Array, value: Float32Array) -> None:
        """Store one token's key and value [D] of one KV head; in an even slot, clear the value in the next one.

        Raises:
            InternalError: There is no such place, or the arrays have another size.
        """
        _call("kv_write_token", self.native, layer, page, head, slot, key, value)

    def read_token(self, layer: int, page: int, head: int, slot: int) -> tuple[Float32Array, Float32Array]:
        """Return one token's key and value [D] of one KV head as kernels see them: rounded to the store's type.

        Raises:
            InternalError: There is no such place.
        """
        key, value = np.empty(self.head_width, np.float32), np.empty(self.head_width, np.float32)
        _call("kv_read_token", self.native, layer, page, head, slot, key, value)
        return key, value


def rope_table(paging: Paging, frequencies: Float32Array, variants: Int32Array, *, factor: float) -> Float32Array:
    """Compute the rotations of a step's tokens; the native form of `ir.rope.rope_angles`.

    Args:
        paging: The step.
        frequencies: [variants, half] radians per position.
        variants: [B] row of `frequencies` that each request uses.
        factor: On cosines and sines.

    Returns:
        [T, 2, half]: cosines, then sines.

    Raises:
        InternalError: Sizes do not fit.
    """
    out = np.empty((len(paging.positions), 2, frequencies.shape[1]), np.float32)
    _call("rope_table", paging._native(), frequencies, variants, factor, out)
    return out


def query_factor(scale: float, softcap: float | None) -> float:
    """What queries are multiplied with before they are rounded, so that scores come out as powers of two."""
    return float(_module().query_factor(scale, softcap or 0.0))


def rope_and_store(
    paging: Paging,
    pages: KVPages,
    layer: int,
    qkv: Float32Array,
    *,
    factor: float,
    table: Float32Array | None = None,
    norms: HeadNorms | None = None,
    isa: str | None = None,
) -> NDArray[np.uint8]:
    """Norm and rotate queries and keys; round queries, store keys and values.

    Args:
        paging: The step.
        pages: Where keys and values go.
        layer: Layer of the store.
        qkv: [T, (H + 2 G) * D] queries, keys and values.
        factor: `query_factor`.
        table: [T, 2, half], or `None` for layers without positions.
        norms: Norms before the rotation.
        isa: Instruction set to run on; the strongest when `None`.

    Returns:
        The queries [T, H, D] as bytes that `attend` takes: bf16, or float32 for a store of float32.

    Raises:
        InternalError: Sizes do not fit, a page is not the store's, or this processor lacks the instruction set.
    """
    width = pages.head_width
    num_heads = qkv.shape[1] // width - 2 * pages.num_kv_heads
    queries = np.empty(len(qkv) * max(num_heads, 0) * width * (4 if pages.dtype == "f32" else 2), np.uint8)
    weights, eps = (None, 0.0) if norms is None else ((norms.q_weight, norms.k_weight), norms.eps)
    args = (layer, qkv, weights, eps, table, factor, queries, isa)
    _call("rope_and_store", paging._native(), pages.native, *args)
    return queries


def attend(
    paging: Paging,
    pages: KVPages,
    layer: int,
    queries: NDArray[np.uint8],
    *,
    num_heads: int,
    window: int | None = None,
    softcap: float | None = None,
    isa: str | None = None,
) -> Float32Array:
    """Compute softmax(q . K) . V for the tokens of a step, whose keys and values are stored.

    Args:
        paging: The step.
        pages: Keys and values.
        layer: Layer of the store.
        queries: From `rope_and_store`.
        num_heads: H, a multiple of the store's KV heads.
        window: Positions that a row sees, itself included; `None` is all before it.
        softcap: Scores are squashed into (-softcap, softcap) when given; the queries' factor must be for it.
        isa: Instruction set to run on; the strongest when `None`.

    Returns:
        [T, H * D].

    Raises:
        InternalError: Sizes do not fit, a page that a row sees is not the store's, or this processor lacks the
            instruction set.
    """
    ensure(window is None or window >= 1, f"a window of {window} positions")
    out = np.empty((len(paging.positions), num_heads * pages.head_width), np.float32)
    args = (layer, queries, window or 0, softcap or 0.0, out, isa)
    _call("attend", paging._native(), pages.native, *args)
    return out


def _call(name: str, *args: Any) -> None:
    """Call the native module; what it refuses is a bug of ours."""
    try:
        getattr(_module(), name)(*args)
    except (ValueError, TypeError) as error:
        raise InternalError(str(error)) from None
