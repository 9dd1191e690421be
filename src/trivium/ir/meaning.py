"""What each primitive computes, once, over the array API, so that one text runs on NumPy and on torch.

A meaning takes the `Pass` it runs in, then the op's operands in their declared order, then its attributes by name.
Every meaning treats rows alone: row t of a result is the same bits whatever other rows are there. That holds because
elementwise functions and reductions over the last axis work row by row on contiguous arrays (a law that the tests
hold against NumPy), and because products go through an injected provider that promises it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from trivium.base.errors import InternalError, ensure
from trivium.ir.attention import KVRead, attend
from trivium.ir.rope import rope_angles

if TYPE_CHECKING:
    from trivium.config.model import Activation, RopeConfig
    from trivium.ir.graph import Dim

Array = Any
"""An array of the library in use: float32 unless said otherwise."""


class ArrayLibrary(Protocol):
    """Arrays, and the products that the array API leaves too free for promise 1 (same bits)."""

    xp: Any
    """Array-API namespace."""

    def asarray(self, host: Any) -> Array:
        """Take a NumPy array to where this library computes; shares memory where it can."""
        ...

    def gemm(self, x: Array, weight: Any) -> Array:
        """[T, K] times a bound parameter [N, K] -> new [T, N]."""
        ...

    def rows(self, weight: Any, ids: Array) -> Array:
        """Rows of a bound parameter [V, M] -> new [T, M]."""
        ...

    def matmul_nt(self, a: Array, b: Array) -> Array:
        """[B, M, K] times [B, N, K] -> [B, M, N]."""
        ...

    def matmul_nn(self, a: Array, b: Array) -> Array:
        """[B, M, K] times [B, K, N] -> [B, M, N]."""
        ...


class KVMemory(Protocol):
    """The KV store as one step sees it."""

    def write(self, layer: int, k: Array, v: Array) -> None:
        """Store [T, G, D] keys and values of the step's tokens."""
        ...

    def reads(self, layer: int, window: int | None) -> Iterable[KVRead]:
        """Yield what each token of the step sees, every token in exactly one read.

        A read's arrays are valid until the next one is asked for.
        """
        ...


class AdapterSource(Protocol):
    """The adapters of one step's requests."""

    def delta(self, parameter: str, x: Array, rows: str) -> Array:
        """Compute what is added to the product with `parameter` [N, K].

        Args:
            parameter: Canonical name.
            x: [rows, K] the product's left operand, not rounded.
            rows: `T`: one row per token of the step; `R`: one per wanted row.

        Returns:
            [rows, N]; for rows whose request has no adapter -0, which changes no bit of what it is added to.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass runs with."""

    library: ArrayLibrary
    memory: KVMemory
    adapters: AdapterSource | None = None
    """Needed by graphs with the op `adapter_delta`, and by no others."""

    @property
    def xp(self) -> Any:
        """The array-API namespace."""
        return self.library.xp


def embed(run: Pass, token_ids: Array, weight: Any, embeds: Array | None, *, scale: float) -> Array:
    """Look up; `embeds` [T, M] may hold rows that win, its other rows are NaN."""
    x = run.library.rows(weight, token_ids)
    if scale != 1.0:
        x *= scale
    return x if embeds is None else run.xp.where(run.xp.isnan(embeds), x, embeds)


def rms_norm(run: Pass, x: Array, weight: Array, *, eps: float) -> Array:
    """Divide by the root of the mean square. Source: Zhang and Sennrich 2019, RMSNorm."""
    mean_square = run.xp.sum(x * x, axis=-1, keepdims=True)
    mean_square *= 1.0 / x.shape[-1]
    mean_square += eps
    normed = x / run.xp.sqrt(mean_square)
    normed *= weight
    return normed


def gemm(run: Pass, x: Array, weight: Any, bias: Array | None, delta: Array | None) -> Array:
    """Multiply, then add bias, then delta."""
    product = run.library.gemm(x, weight)
    if bias is not None:
        product += bias
    if delta is not None:
        product += delta
    return product


def split(run: Pass, x: Array, *, sizes: tuple[int, ...]) -> tuple[Array, ...]:
    """Copy pieces of the last axis, so that each is contiguous."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(run.xp.asarray(x[..., start : start + size], copy=True))
        start += size
    return tuple(pieces)


def reshape(run: Pass, x: Array, *, shape: tuple[Dim, ...]) -> Array:
    """Give another shape; the one symbol in it is whatever is left."""
    return run.xp.reshape(x, tuple(dim if isinstance(dim, int) else -1 for dim in shape))


def rope_table(run: Pass, positions: Any, reach: Any, *, rope: RopeConfig) -> Array:
    """Cosines and sines; `positions` and `reach` are in host memory."""
    return run.library.asarray(rope_angles(rope, positions, reach))


def rope(run: Pass, x: Array, table: Array) -> Array:
    """Rotate. Source: Su et al. 2021, RoFormer, in the half-split layout of Hugging Face checkpoints.

    ::

        element    0 ....... half ....... 2 * half ....... D
        out        | a cos - b sin | b cos + a sin | as it was |      a, b: first and second half
    """
    half = table.shape[-1]
    cos, sin = table[:, None, 0, :], table[:, None, 1, :]
    first, second = x[..., :half], x[..., half : 2 * half]
    pieces = [first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]]
    return run.xp.concat(pieces[: 2 if 2 * half == x.shape[-1] else 3], axis=-1)


def kv_write(run: Pass, k: Array, v: Array, *, layer: int) -> None:
    """Store; the token it gives is nothing."""
    run.memory.write(layer, k, v)


def attention(
    run: Pass, q: Array, _kv: None, *, layer: int, scale: float, window: int | None, softcap: float | None
) -> Array:
    """Attend, read by read; see `ir.attention`."""
    scaled = q * scale
    out = run.xp.empty_like(q)
    for read in run.memory.reads(layer, window):
        out[read.rows] = attend(run.library, scaled[read.rows], read, softcap=softcap)
    return out


def gated(run: Pass, gate: Array, up: Array, *, activation: Activation) -> Array:
    """Apply the activation to the gate."""
    gate = ACTIVATIONS[activation](run.xp, gate)
    gate *= up
    return gate


def add(_run: Pass, a: Array, b: Array) -> Array:
    """Add."""
    return a + b


def mul(_run: Pass, a: Array, b: Array) -> Array:
    """Multiply element by element."""
    return a * b


def scale(_run: Pass, x: Array, *, factor: float) -> Array:
    """Multiply by a number."""
    return x * factor


def softcap(run: Pass, x: Array, *, cap: float) -> Array:
    """Squash into (-cap, cap)."""
    capped = run.xp.tanh(x * (1.0 / cap))
    capped *= cap
    return capped


def gather_rows(_run: Pass, x: Array, rows: Array) -> Array:
    """Pick rows."""
    return x[rows]


def adapter_delta(run: Pass, x: Array, *, parameters: tuple[str, ...], widths: tuple[int, ...], rows: str) -> Array:
    """Ask the step's adapters, parameter by parameter."""
    if run.adapters is None:
        raise InternalError("the graph asks for adapters, and the step brings none")
    deltas = []
    for parameter, width in zip(parameters, widths, strict=True):
        deltas.append(run.adapters.delta(parameter, x, rows))
        found = tuple(deltas[-1].shape)
        ensure(found == (x.shape[0], width), f"the adapters' delta of {parameter} is {found}")
    return deltas[0] if len(deltas) == 1 else run.xp.concat(deltas, axis=-1)


def silu(xp: Any, x: Array) -> Array:
    """Multiply x by its sigmoid; below -88 the exponential would overflow, and the product is nothing anyway."""
    tail = xp.maximum(x, -88.0)
    tail *= -1.0
    tail = xp.exp(tail)
    tail += 1.0
    return x / tail


def gelu_tanh(xp: Any, x: Array) -> Array:
    """The tanh form of GELU. Source: Hendrycks and Gimpel 2016, section 2."""
    inner = x * x
    inner *= 0.044715
    inner += 1.0
    inner *= x
    inner *= math.sqrt(2.0 / math.pi)
    half = xp.tanh(inner)
    half += 1.0
    half *= x
    half *= 0.5
    return half


ACTIVATIONS: Mapping[str, Callable[[Any, Array], Array]] = {"silu": silu, "gelu_tanh": gelu_tanh}

PRIMITIVE_MEANINGS: Mapping[str, Callable[..., Any]] = {
    meaning.__name__: meaning
    for meaning in (
        embed, rms_norm, gemm, split, reshape, rope_table, rope, kv_write, attention, gated, add, mul, scale, softcap,
        gather_rows, adapter_delta,
    )
}  # fmt: skip
"""Primitive to what it computes; an op of several outputs gives a tuple. Fused ops: `ir.fused_meaning`."""
