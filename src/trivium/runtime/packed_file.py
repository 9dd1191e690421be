"""The file of packed weights: what is in it, where, and how to tell that it is whole.

::

    [0, 32)          magic "TRIVPACK" | version u32 | CRC-32 of the header u32 | header length u64 | file size u64
    [32, 32 + n)     header, JSON: whose weights, in which layout, and one entry a tensor
    …                zeros to a multiple of 4096
    tensors          each at a multiple of 4096: its panels, one after the other (csrc/ops/linear/format.h)

    tensor           [ piece ][ piece ] … [ last piece, shorter ]      a piece is whole panels, with a CRC-32 of its own

Opening reads the header and compares sizes; no byte of a tensor is read before it is used. Checksums of pieces are for
`damage_of`, which reads everything. Numbers are little-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import ensure
from trivium.base.intmath import align_up, ceil_div
from trivium.weights.kinds import Codes

MAGIC = b"TRIVPACK"
VERSION = 1
PAGE_BYTES = 4096
"""Tensors begin at multiples of this, which is also a multiple of every alignment that kernels ask for."""

_PREAMBLE = struct.Struct("<8sIIQQ")
_PIECE_VALUES = 1 << 20
_LONGEST_HEADER = 1 << 28
_LARGEST_NUMBER = (1 << 63) - 1


class PackedFileError(Exception):
    """A file of packed weights that cannot be used; says why. Never leaves `runtime`."""


class Packer(Protocol):
    """What lays records out in panels."""

    @property
    def layout(self) -> str:
        """Identity of the layout: panels of equal layouts have equal bytes."""
        ...

    @property
    def panel_cols(self) -> int:
        """Columns of a panel: rows of a record that go into one."""
        ...

    def panel_bytes(self, format_name: str, depth: int) -> int:
        """Return the size of a panel over `depth` values of k."""
        ...

    def pack(self, codes: Codes) -> NDArray[np.uint8]:
        """Return the panels of a record's rows, back to back, [ceil(N / panel_cols) * panel_bytes]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSpec:
    """A matrix [N, K] that is wanted in packed form."""

    name: str
    format: str
    num_cols: int
    """N."""
    depth: int
    """K."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor in the file."""

    name: str
    format: str
    num_cols: int
    depth: int
    offset: int
    """Bytes from the beginning of the file."""
    num_bytes: int
    piece_cols: int
    """Columns of a piece, whole panels."""
    piece_bytes: int
    checksums: tuple[int, ...]
    """CRC-32 of every piece."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says of itself."""

    model: str
    """For people: what the weights were packed from."""
    fingerprint: str
    """Of the checkpoint."""
    layout: str
    """Of the panels."""
    tensors: tuple[Entry, ...]
    """At least one."""

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.tensors[-1].offset + self.tensors[-1].num_bytes

    def require(self, expected: Header) -> None:
        """Check that this is the header of the bytes that `expected` describes, which knows no checksums yet.

        Raises:
            PackedFileError: It is not.
        """
        if _blank(self) != _blank(expected):
            raise PackedFileError("it holds other weights")


def lay_out(model: str, fingerprint: str, wanted: Sequence[PackedSpec], packer: Packer) -> Header:
    """Give every tensor its place in a file; checksums are zeros until the pieces are packed.

    Raises:
        InternalError: Nothing is wanted, or a name twice.
    """
    ensure(wanted and len({spec.name for spec in wanted}) == len(wanted), "packed weights need names of their own")
    tensors = [_entry(spec, packer) for spec in wanted]
    draft = Header(model, fingerprint, packer.layout, tuple(tensors))
    widest = [
        msgspec.structs.replace(entry, offset=_LARGEST_NUMBER, checksums=(0xFFFFFFFF,) * len(entry.checksums))
        for entry in tensors
    ]
    longest = len(msgspec.json.encode(msgspec.structs.replace(draft, tensors=tuple(widest))))
    position = align_up(_PREAMBLE.size + longest, PAGE_BYTES)
    placed = []
    for entry in tensors:
        placed.append(msgspec.structs.replace(entry, offset=position))
        position = align_up(position + entry.num_bytes, PAGE_BYTES)
    return msgspec.structs.replace(draft, tensors=tuple(placed))


def encode(header: Header) -> bytes:
    """Return everything before the first tensor, without the zeros."""
    text = msgspec.json.encode(header)
    return _PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(text), len(text), header.file_bytes) + text


def read_header(path: Path) -> Header:
    """Read the header and check everything but the pieces.

    Raises:
        PackedFileError: The file is of another version, truncated or damaged.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size:
            raise PackedFileError(f"it has {size} bytes")
        magic, version, checksum, text_len, expected = _PREAMBLE.unpack(preamble)
        if magic != MAGIC:
            raise PackedFileError("it is not a file of packed weights")
        if version != VERSION:
            raise PackedFileError(f"it is of version {version}, and this is version {VERSION}")
        if size != expected:
            raise PackedFileError(f"it has {size} bytes, and should have {expected}")
        text = file.read(text_len) if text_len <= min(size, _LONGEST_HEADER) else b""
    if len(text) != text_len or zlib.crc32(text) != checksum:
        raise PackedFileError("the checksum of its header is wrong")
    try:
        header = msgspec.json.decode(text, type=Header)
    except msgspec.DecodeError as error:
        raise PackedFileError(f"its header is malformed: {error}") from error
    _check_entries(header, _PREAMBLE.size + text_len, size)
    return header


def map_file(path: Path, size: int) -> mmap.mmap:
    """Map a file read-only, in large pages where the system can, and have it begin to read.

    Raises:
        OSError: It cannot be mapped.
    """
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    for advice in ("MADV_HUGEPAGE", "MADV_WILLNEED"):
        if hasattr(mmap, advice):
            with suppress(OSError):  # a system that has the name and not the thing
                mapping.madvise(getattr(mmap, advice))
    return mapping


def damage_of(path: Path, report: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Read a whole file and say what is wrong with it, one line each; nothing when it is as it was written.

    Args:
        path: The file.
        report: Told of bytes checked so far, and in all.

    Raises:
        OSError: It cannot be read.

    Cost: reads every byte, about one second per GB.
    """
    try:
        header = read_header(path)
    except PackedFileError as error:
        return [str(error)]
    damage = []
    buffer = map_file(path, header.file_bytes)
    total = sum(entry.num_bytes for entry in header.tensors)
    done = 0
    for entry in header.tensors:
        view = np.frombuffer(buffer, np.uint8, entry.num_bytes, entry.offset)
        for piece, expected in enumerate(entry.checksums):
            part = view[piece * entry.piece_bytes : (piece + 1) * entry.piece_bytes]
            if zlib.crc32(part.data) != expected:
                first = piece * entry.piece_cols
                last = min(first + entry.piece_cols, entry.num_cols)
                damage.append(f"{entry.name}: rows {first} to {last} are not what was written")
            done += len(part)
            report(done, total)
    return damage


def _entry(spec: PackedSpec, packer: Packer) -> Entry:
    panel_bytes = packer.panel_bytes(spec.format, spec.depth)
    num_panels = ceil_div(spec.num_cols, packer.panel_cols)
    piece_panels = max(1, _PIECE_VALUES // max(1, spec.depth * packer.panel_cols))
    return Entry(
        name=spec.name,
        format=spec.format,
        num_cols=spec.num_cols,
        depth=spec.depth,
        offset=0,
        num_bytes=num_panels * panel_bytes,
        piece_cols=piece_panels * packer.panel_cols,
        piece_bytes=piece_panels * panel_bytes,
        checksums=(0,) * ceil_div(num_panels, piece_panels),
    )


def _blank(header: Header) -> Header:
    tensors = tuple(msgspec.structs.replace(entry, checksums=()) for entry in header.tensors)
    return msgspec.structs.replace(header, model="", tensors=tensors)


def _check_entries(header: Header, header_end: int, size: int) -> None:
    if not header.tensors:
        raise PackedFileError("its header names no tensors")
    position = header_end
    for entry in header.tensors:
        counts = (entry.num_cols, entry.depth, entry.num_bytes, entry.piece_cols, entry.piece_bytes)
        num_pieces = len(entry.checksums)
        fits = (
            min(counts) > 0
            and entry.offset % PAGE_BYTES == 0
            and entry.offset >= position
            and entry.offset + entry.num_bytes <= size
            and num_pieces == ceil_div(entry.num_cols, entry.piece_cols)
            and num_pieces == ceil_div(entry.num_bytes, entry.piece_bytes)
        )
        if not fits:
            raise PackedFileError(f"its header says what cannot be of {entry.name}")
        position = entry.offset + entry.num_bytes
