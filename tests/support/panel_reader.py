"""Packed panels read back into records, written from the drawings in csrc/ops/linear/blocks.h alone."""

from __future__ import annotations

import numpy as np

from trivium.weights.kinds import PANEL_FORMATS, Codes

COLUMNS, HALF, LINE, GROUP = 32, 16, 64, 32
SUPER = 256
SUB_BYTES = {"q2_k": 64, "q3_k": 48, "q4_k": 48, "q5_k": 48, "q6_k": 64}
"""Sub-scales before the codes of a group of 32."""

Bytes = np.ndarray


def read_panels(panels: Bytes, format_name: str, num_cols: int, depth: int) -> Codes:
    """Read a matrix [N, K] back.

    Args:
        panels: [ceil(N / 32) * panel bytes] uint8.
        format_name: Key of `PANEL_FORMATS`.
        num_cols: N.
        depth: K.
    """
    by_panel = panels.reshape(-(-num_cols // COLUMNS), -1)
    if format_name in {"f32", "bf16", "f16"}:
        dtype = np.dtype(PANEL_FORMATS[format_name].code_dtype)
        arrays = {"codes": _numbers(by_panel, dtype, 2 if format_name == "bf16" else 1)}
    else:
        arrays = _integers(by_panel, format_name, depth)
    record = Codes.empty(format_name, num_cols, depth)
    for name, array in record.arrays.items():
        array[:] = arrays[name].reshape(-1, arrays[name].shape[-1])[:num_cols, : array.shape[1]]
    return record


def _numbers(by_panel: Bytes, dtype: np.dtype, per_unit: int) -> np.ndarray:
    # f32, f16 [k][32 columns]; bf16 [k / 2][32 columns][2]
    units = by_panel.view(dtype).reshape(len(by_panel), -1, COLUMNS, per_unit)
    return units.transpose(0, 2, 1, 3).reshape(len(by_panel), COLUMNS, -1)


def _integers(by_panel: Bytes, format_name: str, depth: int) -> dict[str, np.ndarray]:
    kind = PANEL_FORMATS[format_name]
    span = SUPER if "supers" in kind.ingredients else (kind.ingredients["scales"].span or GROUP)
    num_blocks = -(-depth // span)
    header_bytes = 4 * COLUMNS if format_name == "i8_c" else 0
    header, rest = by_panel[:, :header_bytes], by_panel[:, header_bytes:]
    blocks = rest.reshape(len(by_panel), num_blocks, -1)
    num_groups, sub_bytes = span // GROUP, SUB_BYTES.get(format_name, 0)
    group_bytes = sub_bytes + 2 * kind.code_bits * LINE
    record, groups = blocks[:, :, : -num_groups * group_bytes], blocks[:, :, -num_groups * group_bytes :]
    groups = groups.reshape(len(by_panel), num_blocks, num_groups, group_bytes)
    found = _record(record, format_name) if record.shape[2] else {"scales": _as(header, np.float32)[:, :, None]}
    if sub_bytes:
        subs = _subs(groups[..., :sub_bytes], format_name)
        found |= {name: _by_column(array) for name, array in subs.items()}
    lines = groups[..., sub_bytes:].reshape(len(by_panel), num_blocks * num_groups, 2, kind.code_bits, LINE)
    return {"codes": _codes(lines, kind.code_bits), **found}


def _codes(lines: Bytes, bits: int) -> Bytes:
    # [panel, group, half, line, 64] -> [panel, column, k]; byte 4 n + i of quad q is column n, k = 4 q + i
    low = 8 if bits == 8 else 4 if bits >= 4 else 2
    quads = []
    for quad in range(GROUP // 4):
        code = _bits(lines[:, :, :, _low_line(bits, quad * low // 8)], quad, low)
        if bits > low:
            high = _bits(lines[:, :, :, 3 * (quad // 4) if bits == 6 else 0], quad, bits - low)
            code |= high << np.uint8(low)
        quads.append(code.reshape(*code.shape[:-1], HALF, 4))
    by_quad = np.stack(quads, axis=4)  # [panel, group, half, n, quad, i]
    return by_quad.transpose(0, 2, 3, 1, 4, 5).reshape(len(lines), COLUMNS, -1)


def _low_line(bits: int, line: int) -> int:
    # 3 bits: H0 L0 L1    5 bits: H0 L0 L1 L2 L3    6 bits: H0 L0 L1 H1 L2 L3
    return line + 1 if bits in {3, 5} else line + line // 2 + 1 if bits == 6 else line


def _bits(line: Bytes, quad: int, width: int) -> Bytes:
    return line >> np.uint8(quad * width % 8) & np.uint8((1 << width) - 1)


def _record(record: Bytes, format_name: str) -> dict[str, np.ndarray]:
    """Take scale records [panel, block, bytes] apart into [panel, column, entries]."""
    ingredients = PANEL_FORMATS[format_name].ingredients
    halves = [name for name in ("scales", "supers", "mins", "super_mins") if name in ingredients]
    found = {
        name: _by_column(_as(record[:, :, 64 * index : 64 * index + 64], np.float16))
        for index, name in enumerate(halves)
    }
    rest = record[:, :, 64 * len(halves) :]
    return found | ({"zeros": _by_column(rest)} if "zeros" in ingredients else {})


def _subs(packed: Bytes, format_name: str) -> dict[str, np.ndarray]:
    """Take sub-scales [panel, block, group, bytes] apart into [panel, block, entries, column]."""
    pieces = (*packed.shape[:2], -1, COLUMNS)
    if format_name == "q2_k":
        both = packed.reshape(pieces)
        return {"subs": both & np.uint8(15), "sub_mins": both >> np.uint8(4)}
    if format_name == "q6_k":
        return {"subs": _as(packed, np.int8).reshape(pieces)}
    numbers = _six_bits(packed)
    if format_name == "q3_k":
        return {"subs": numbers.reshape(pieces).astype(np.int8) - np.int8(32)}
    return {"subs": numbers[..., :COLUMNS], "sub_mins": numbers[..., COLUMNS:]}


def _six_bits(packed: Bytes) -> Bytes:
    # low byte i < 32: v[i], v[32 + i] by nibbles; high byte i < 16: v[i], v[16 + i], v[32 + i], v[48 + i] by bit pairs
    low, high = packed[..., :32], packed[..., 32:]
    nibbles = np.concatenate([low & np.uint8(15), low >> np.uint8(4)], axis=-1)
    pairs = np.concatenate([high >> np.uint8(2 * place) & np.uint8(3) for place in range(4)], axis=-1)
    return nibbles | pairs << np.uint8(4)


def _as(raw: Bytes, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(raw).view(dtype)


def _by_column(entries: np.ndarray) -> np.ndarray:
    """[panel, block, (entries of the block,) column] -> [panel, column, entries]."""
    flat = entries.reshape(len(entries), -1, COLUMNS)
    return np.ascontiguousarray(flat.transpose(0, 2, 1))
