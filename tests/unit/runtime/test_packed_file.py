"""The header of a file of packed weights is checked as if it came from a stranger: its offsets become addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from support.row_packer import RowPacker
from trivium.runtime.packed import PackedSpec
from trivium.runtime.packed_file import PAGE_BYTES, Header, PackedFileError, encode, lay_out, read_header

WANTED = [PackedSpec(name=f"w{index}", format="i8_g32", num_cols=40 + index, depth=64) for index in range(3)]


def written(path: Path, header: Header, num_bytes: int | None = None) -> Path:
    size = header.file_bytes if num_bytes is None else num_bytes
    path.write_bytes(encode(header).ljust(size, b"\0"))
    return path


def changed(header: Header, **fields: Any) -> Header:
    entry = msgspec.structs.replace(header.tensors[1], **fields)
    return msgspec.structs.replace(header, tensors=(header.tensors[0], entry, header.tensors[2]))


def test_tensors_lie_on_pages_one_after_the_other(tmp_path: Path) -> None:
    header = lay_out("m", "f" * 64, WANTED, RowPacker())
    position = len(encode(header))
    for entry, spec in zip(header.tensors, WANTED, strict=True):
        assert entry.offset % PAGE_BYTES == 0
        assert position <= entry.offset
        assert entry.num_bytes == 2 * RowPacker().panel_bytes(spec.format, spec.depth)
        position = entry.offset + entry.num_bytes
    assert position == header.file_bytes
    assert read_header(written(tmp_path / "x", header)) == header


def test_room_is_left_for_the_longest_checksums() -> None:
    large = PackedSpec(name="w", format="f32", num_cols=10**6, depth=999)
    header = lay_out("m", "f" * 64, [large], RowPacker())
    sums = (0xFFFFFFFF,) * len(header.tensors[0].checksums)
    full = msgspec.structs.replace(header, tensors=(msgspec.structs.replace(header.tensors[0], checksums=sums),))
    assert len(encode(full)) <= header.tensors[0].offset


def test_every_flipped_bit_of_the_header_is_noticed(tmp_path: Path) -> None:
    header = lay_out("m", "f" * 64, WANTED, RowPacker())
    path = written(tmp_path / "x", header)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(encode(header))):
        broken = bytearray(content)
        broken[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(PackedFileError):
            read_header(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 0},
        {"offset": 5 * PAGE_BYTES + 1},
        {"offset": 1 << 40},
        {"num_bytes": 1 << 40},
        {"num_bytes": 0},
        {"num_cols": -1},
        {"depth": 0},
        {"piece_cols": 0},
        {"piece_cols": 8},
        {"piece_bytes": 0},
        {"piece_bytes": 8},
        {"checksums": ()},
        {"checksums": (1, 2, 3)},
    ],
)
def test_a_header_that_says_what_cannot_be_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    header = lay_out("m", "f" * 64, WANTED, RowPacker())
    path = written(tmp_path / "x", changed(header, **fields), header.file_bytes)
    with pytest.raises(PackedFileError, match=r"its header says what cannot be of w[12]"):
        read_header(path)


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b"null", b'{"model": "m"}', b'{"model":"m","fingerprint":"f","layout":"l","tensors":[]}']
)
def test_a_header_of_another_form_is_refused(tmp_path: Path, text: bytes) -> None:
    import struct  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    path = tmp_path / "x"
    path.write_bytes(struct.pack("<8sIIQQ", b"TRIVPACK", 1, zlib.crc32(text), len(text), 32 + len(text)) + text)
    with pytest.raises(PackedFileError, match="its header"):
        read_header(path)
