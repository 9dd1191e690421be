"""Four-bit weights of AWQ and GPTQ checkpoints: codes, zero points and scales in three int32 and float16 tensors.

Such a checkpoint says `quantization_config` in its config.json and holds, for a weight X.weight [N, K] with groups of g
values, instead of that weight::

    GPTQ   X.qweight int32 [K / 8, N]    bits 4i of word [r, n]       code of k = 8r + i
           X.qzeros  int32 [K / g, N/8]  bits 4i of word [j, c]       zero point of n = 8c + i, less 1
           X.scales  f16   [K / g, N]
           X.g_idx   int32 [K]           group of k; k // g unless columns were reordered ("act-order")

    AWQ    X.qweight int32 [K, N / 8]    bits 4i of word [k, c]       code of n = 8c + ORDER[i]
           X.qzeros  int32 [K / g, N/8]  bits 4i of word [j, c]       zero point of n = 8c + ORDER[i]
           X.scales  f16   [K / g, N]    ORDER = 0 2 4 6 1 3 5 7

    weight[n, k] = (code - zero point) * scale

`join` puts the pieces together under the name X.weight, so that whatever reads checkpoints finds a matrix there.
What these formats may say beyond this (other widths, act-order, other kernels' layouts) is refused by name.

Source: Lin et al. 2023, AWQ, and Frantar et al. 2022, GPTQ, in the layouts that AutoAWQ ("gemm") and AutoGPTQ write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError, ensure
from trivium.weights.kinds import Codes, dequantize
from trivium.weights.spread import spread
from trivium.weights.stored import StoredTensor, Tensor

Method = Literal["awq", "gptq"]
METHODS: tuple[Method, ...] = ("awq", "gptq")
"""Values of quant_method that are read."""

_PER_WORD = 8
_AWQ_NIBBLE_OF = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds column 8c + j, for j = 0 .. 7: the inverse of AWQ's order."""
_GROUPS = (128, 64, 32)
_CHUNK_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True)
class ZeroPointLayout:
    """What a `quantization_config` says of the tensors."""

    method: Method
    group_len: int | None
    """Values of k that share a scale; `None`: all of a row."""
    zero_offset: int
    """Added to a stored zero point."""
    may_reorder: bool
    """Whether columns may have been reordered, so that g_idx must be there to show that they were not."""


@dataclass(frozen=True, slots=True)
class ZeroPointTensor:
    """A matrix made of codes, zero points and scales.

    Invariants:
        Shapes fit each other, and `panel_group` divides `group_len`.
    """

    name: str
    shape: tuple[int, ...]
    layout: ZeroPointLayout
    qweight: StoredTensor
    qzeros: StoredTensor
    scales: StoredTensor

    @property
    def format(self) -> str:
        """Storage format: AWQ or GPTQ."""
        return self.layout.method.upper()

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size in the files."""
        return sum(piece.num_bytes for piece in self.pieces)

    @property
    def pieces(self) -> Sequence[StoredTensor]:
        """What it is read from."""
        return (self.qweight, self.qzeros, self.scales)

    @property
    def group_len(self) -> int:
        """Values of k that share a scale."""
        return self.layout.group_len or self.shape[1]

    @property
    def panel_group(self) -> int:
        """The longest group of a panel format that divides the tensor's own."""
        return next(group for group in _GROUPS if self.group_len % group == 0)

    @property
    def panel_format(self) -> str:
        """The panel format that keeps the tensor exactly."""
        return f"i4z_g{self.panel_group}"

    def fill(self, ids: NDArray[np.intp], into: Codes) -> None:
        """Fill a record of `panel_format` with rows `ids`.

        Raises:
            CheckpointError: A scale is not a float16 number.
            InternalError: The record has another format.
        """
        ensure(into.format == self.panel_format, f"{self.name} was asked for as {into.format}")
        repeat = self.group_len // self.panel_group
        into.arrays["scales"][:] = np.repeat(_halves(self.scales)[:, ids].T, repeat, axis=1)
        into.arrays["zeros"][:] = np.repeat(self._zeros(ids), repeat, axis=1)
        words = _words(self.qweight)
        if self.layout.method == "gptq":
            into.codes[:] = _along_depth(words, ids)
        else:
            into.codes[:] = _across_columns(words, ids, _AWQ_NIBBLE_OF)

    def float32(self, rows: NDArray[np.intp] | slice | None = None) -> NDArray[np.float32]:
        """Dequantize.

        Args:
            rows: Which rows, in which order; `None` takes all.

        Returns:
            A new array of `shape`, with as many rows as were asked for.

        Raises:
            CheckpointError: A scale is not a float16 number.
        """
        everything = np.arange(self.shape[0], dtype=np.intp)
        ids = everything if rows is None else everything[rows]
        out = np.empty((len(ids), self.shape[1]), np.float32)
        step = max(_PER_WORD, _CHUNK_ELEMENTS // self.shape[1])

        def fill(start: int) -> None:
            chosen = ids[start : start + step]
            record = Codes.empty(self.panel_format, len(chosen), self.shape[1])
            self.fill(chosen, record)
            out[start : start + step] = dequantize(record)

        spread(fill, range(0, len(ids), step), out.size)
        return out

    def _zeros(self, ids: NDArray[np.intp]) -> NDArray[np.uint8]:
        words = _words(self.qzeros)
        if self.layout.method == "awq":
            return _across_columns(words, ids, _AWQ_NIBBLE_OF)
        # Zero points are 0 to 15. Writers subtract 1 from each nibble of a word at once, so that a zero point of 0
        # borrows from the nibble above; adding 1 to each at once gives it back.
        ones = np.uint32(0x11111111 * self.layout.zero_offset)
        return _across_columns(words + ones, ids, tuple(range(_PER_WORD)))


def layout_of(config: Mapping[str, Any], where: str) -> ZeroPointLayout | None:
    """Read `quantization_config`.

    Args:
        config: Content of a config.json.
        where: Names it in errors.

    Returns:
        The layout, or `None` for a checkpoint that is not quantized.

    Raises:
        CheckpointError: It is quantized in a way that is not read; the message names the key.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    if method not in METHODS or not isinstance(quantization, Mapping):
        raise CheckpointError(
            f"{where}: quantization_config ({method}) is not supported, only {' and '.join(METHODS)} with 4 bits; "
            "use the unquantized checkpoint, or a GGUF file"
        )
    _require_known(quantization, _ACCEPTED[method], f"{where}: quantization_config ({method})")
    group_len = quantization.get("group_size", quantization.get("q_group_size"))
    is_v1 = method == "gptq" and "gptq_v2" not in {quantization.get(key) for key in ("checkpoint_format", "format")}
    return ZeroPointLayout(
        method=method,
        group_len=None if group_len == -1 else group_len,
        zero_offset=int(is_v1),
        may_reorder=bool(quantization.get("desc_act")),
    )


def _require_known(quantization: Mapping[str, Any], accepted: Mapping[str, Callable[[Any], bool]], where: str) -> None:
    for first, second in (("bits", "w_bit"), ("group_size", "q_group_size")):
        if first not in quantization and second not in quantization:
            raise CheckpointError(f"{where} lacks {first}")
    for key, is_accepted in {**_ALWAYS_ACCEPTED, **accepted}.items():
        if key in quantization and not is_accepted(quantization[key]):
            raise CheckpointError(f"{where} has {key} {quantization[key]!r}, which is not supported")


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value == accepted and type(value) is type(accepted) for accepted in values)


def _is_group_len(value: Any) -> bool:
    return type(value) is int and (value == -1 or (value > 0 and value % _GROUPS[-1] == 0))


def _is_true(value: Any) -> bool:
    return value is True


def _is_empty(value: Any) -> bool:
    return not value


_ALWAYS_ACCEPTED: Mapping[str, Callable[[Any], bool]] = {
    "bits": _one_of(4),
    "w_bit": _one_of(4),
    "group_size": _is_group_len,
    "q_group_size": _is_group_len,
    "pack_dtype": _one_of("int32"),
    "dynamic": _is_empty,
}
_ACCEPTED: Mapping[Method, Mapping[str, Callable[[Any], bool]]] = {
    "awq": {
        "version": _one_of("gemm", "GEMM"),
        "checkpoint_format": _one_of("gemm"),
        "format": _one_of("gemm"),
        "zero_point": _is_true,
        "backend": _one_of("autoawq"),
    },
    "gptq": {
        "checkpoint_format": _one_of("gptq", "gptq_v2"),
        "format": _one_of("gptq", "gptq_v2"),
        "is_marlin_format": _is_empty,
        "hyb_act": _is_empty,
    },
}
"""Keys that say how the tensors are laid out, and which values are read; other keys say how they were made."""


def join(tensors: Mapping[str, StoredTensor], layout: ZeroPointLayout) -> dict[str, Tensor]:
    """Replace the pieces of each quantized weight by the weight.

    Args:
        tensors: Of all files, by name.
        layout: From `layout_of`.

    Returns:
        Tensors by name; X.qweight, X.qzeros, X.scales and X.g_idx have become X.weight.

    Raises:
        CheckpointError: A piece is missing or has another shape or type, or columns were reordered.
    """
    joined: dict[str, Tensor] = {}
    taken: set[str] = set()
    for name in tensors:
        if not name.endswith(".qweight"):
            continue
        stem = name.removesuffix("qweight")
        tensor, pieces = _joined(stem, tensors, layout)
        if tensor.name in tensors:
            raise CheckpointError(f"{name} and {tensor.name} are both in the checkpoint")
        joined[tensor.name] = tensor
        taken |= pieces
    return {name: tensor for name, tensor in tensors.items() if name not in taken} | joined


def _joined(
    stem: str, tensors: Mapping[str, StoredTensor], layout: ZeroPointLayout
) -> tuple[ZeroPointTensor, set[str]]:
    pieces = {kind: tensors[stem + kind] for kind in ("qweight", "qzeros", "scales", "g_idx") if stem + kind in tensors}
    if missing := [stem + kind for kind in ("qzeros", "scales") if kind not in pieces]:
        raise CheckpointError(f"{stem}qweight is in the checkpoint without {', '.join(missing)}")
    scales, words = pieces["scales"], pieces["qweight"]
    if len(words.shape) != 2 or len(scales.shape) != 2:  # noqa: PLR2004
        raise CheckpointError(f"{words.name} {list(words.shape)} or {scales.name} {list(scales.shape)} is no matrix")
    depth = words.shape[0] * (_PER_WORD if layout.method == "gptq" else 1)
    num_rows = scales.shape[1]
    group_len = layout.group_len or depth
    if depth % group_len or depth % _GROUPS[-1] or num_rows % _PER_WORD:
        raise CheckpointError(
            f"{words.name}: a weight of {num_rows} rows of {depth} values has no whole groups of {group_len}, "
            "or no whole words of 8 rows"
        )
    expected = {
        "qweight": (depth // _PER_WORD, num_rows) if layout.method == "gptq" else (depth, num_rows // _PER_WORD),
        "qzeros": (depth // group_len, num_rows // _PER_WORD),
        "scales": (depth // group_len, num_rows),
        "g_idx": (depth,),
    }
    for kind, piece in pieces.items():
        formats = ("F16", "BF16", "F32") if kind == "scales" else ("I32",)
        if piece.shape != expected[kind] or piece.format not in formats:
            raise CheckpointError(
                f"{piece.name} is {piece.format} {list(piece.shape)}, expected {' or '.join(formats)} "
                f"{list(expected[kind])}"
            )
    _refuse_reordered(stem, pieces.get("g_idx"), layout, depth, group_len)
    tensor = ZeroPointTensor(
        f"{stem}weight", (num_rows, depth), layout, pieces["qweight"], pieces["qzeros"], pieces["scales"]
    )
    return tensor, {piece.name for piece in pieces.values()}


def _refuse_reordered(
    stem: str, g_idx: StoredTensor | None, layout: ZeroPointLayout, depth: int, group_len: int
) -> None:
    if g_idx is None:
        if layout.may_reorder:
            raise CheckpointError(f"{stem}g_idx is missing, though quantization_config says desc_act: true")
        return
    in_order = np.arange(depth, dtype=np.int32) // group_len
    if not np.array_equal(g_idx.raw().view("<i4"), in_order):
        raise CheckpointError(
            f"{g_idx.name}: columns were reordered (act-order, desc_act), which is not supported; use a checkpoint "
            "quantized with desc_act: false"
        )


def _words(tensor: StoredTensor) -> NDArray[np.uint32]:
    return tensor.raw().view("<u4").reshape(tensor.shape)


def _halves(tensor: StoredTensor) -> NDArray[np.float16]:
    if tensor.format == "F16":
        return tensor.raw().view("<f2").reshape(tensor.shape)
    values = tensor.float32()
    with np.errstate(over="ignore", under="ignore"):
        halves = values.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), values):
        raise CheckpointError(f"{tensor.name}: {tensor.format} holds scales that are not float16 numbers")
    return halves


def _along_depth(words: NDArray[np.uint32], ids: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Return codes [len(ids), K] of words [K / 8, N] whose nibbles follow each other in depth."""
    packed = np.ascontiguousarray(words[:, ids].T).view(np.uint8)
    codes = np.empty((len(ids), packed.shape[1], 2), np.uint8)
    np.bitwise_and(packed, np.uint8(0x0F), out=codes[:, :, 0])
    np.right_shift(packed, np.uint8(4), out=codes[:, :, 1])
    return codes.reshape(len(ids), -1)


def _across_columns(words: NDArray[np.uint32], ids: NDArray[np.intp], nibble_of: Sequence[int]) -> NDArray[np.uint8]:
    """Return values [len(ids), K] of columns `ids` of words [K, N / 8]; column 8c + j is nibble `nibble_of[j]`."""
    needed, at = np.unique(ids // _PER_WORD, return_inverse=True)
    chosen = np.ascontiguousarray(words[:, needed].T)
    values = np.empty((len(needed), _PER_WORD, len(words)), np.uint8)
    for column, nibble in enumerate(nibble_of):
        values[:, column] = chosen >> np.uint32(4 * nibble) & np.uint32(0x0F)
    chosen_values: NDArray[np.uint8] = values.reshape(-1, len(words))[at * _PER_WORD + ids % _PER_WORD]
    return chosen_values
