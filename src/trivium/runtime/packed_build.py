"""Packing every piece on every core, into a file that appears whole or not at all, or into memory."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import ensure
from trivium.base.files import TEMPORARY, flush_directory
from trivium.runtime.lower import Matrix
from trivium.runtime.packed_file import Entry, Header, PackedSpec, Packer, encode, map_file
from trivium.weights.kinds import Codes
from trivium.weights.spread import usable_cores

Make = Callable[[PackedSpec, int, int], Codes]
"""Returns rows [start, end) of a wanted matrix as a record in its format. Called by several threads at once."""
Progress = Callable[[int, int], None]
"""Called with bytes packed so far and bytes in all."""
Write = Callable[[int, NDArray[np.uint8]], None]
"""Puts bytes at an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """Matrices in packed form. Their memory lives as long as anything refers to them."""

    matrices: Mapping[str, Matrix]
    path: Path | None
    """The file that they are mapped from; `None`: they are in this process's own memory."""
    num_bytes: int
    """Of all panels."""
    build_seconds: float
    """How long packing took; 0 when the file was there."""


class CannotWriteError(Exception):
    """The cache cannot be written; says why."""


def weights_of(header: Header, buffer: mmap.mmap, path: Path | None, seconds: float) -> PackedWeights:
    """View the tensors of a file, or of memory laid out like one."""
    matrices = {}
    for entry in header.tensors:
        panels = np.frombuffer(buffer, np.uint8, entry.num_bytes, entry.offset)
        panels.flags.writeable = False
        matrices[entry.name] = Matrix(entry.format, panels, entry.num_cols, entry.depth)
    num_bytes = sum(entry.num_bytes for entry in header.tensors)
    return PackedWeights(matrices=matrices, path=path, num_bytes=num_bytes, build_seconds=seconds)


class Build:
    """Packing, into a file or into memory."""

    def __init__(self, header: Header, packer: Packer, make: Make, report: Progress) -> None:
        self.header = header
        self._packer = packer
        self._make = make
        self._report = report
        self._began_s = time.perf_counter()

    def in_file(self, path: Path) -> PackedWeights:
        """Write a file, whole or not at all, and map it."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        try:
            with ExitStack() as stack:
                descriptor = _create(temporary, self.header.file_bytes)
                stack.callback(os.close, descriptor)
                packed = self._pack(lambda offset, panels: _write(descriptor, offset, panels))
                _write(descriptor, 0, np.frombuffer(encode(packed), np.uint8))
                _finish(descriptor, temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        try:
            buffer = map_file(path, packed.file_bytes)
        except OSError as error:
            raise CannotWriteError(error.strerror or str(error)) from error
        return weights_of(packed, buffer, path, self._elapsed())

    def in_memory(self) -> PackedWeights:
        """Pack into pages of this process, large ones where the system has them."""
        buffer = mmap.mmap(-1, self.header.file_bytes, **_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a system without them
                buffer.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(buffer, np.uint8)

        def write(offset: int, panels: NDArray[np.uint8]) -> None:
            whole[offset : offset + len(panels)] = panels

        return weights_of(self._pack(write), buffer, None, self._elapsed())

    def _elapsed(self) -> float:
        return max(time.perf_counter() - self._began_s, 1e-9)

    def _pack(self, write: Write) -> Header:
        """Pack every piece on every core, and return the header with their checksums."""
        total = sum(entry.num_bytes for entry in self.header.tensors)
        checksums = [[0] * len(entry.checksums) for entry in self.header.tensors]
        done = 0
        pool = ThreadPoolExecutor(usable_cores())
        try:
            pieces = {
                pool.submit(self._pack_piece, entry, piece, write): (tensor, piece)
                for tensor, entry in enumerate(self.header.tensors)
                for piece in range(len(entry.checksums))
            }
            for future in as_completed(pieces):
                tensor, piece = pieces[future]
                checksums[tensor][piece], num_bytes = future.result()
                done += num_bytes
                self._report(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
        tensors = tuple(
            msgspec.structs.replace(entry, checksums=tuple(sums))
            for entry, sums in zip(self.header.tensors, checksums, strict=True)
        )
        return msgspec.structs.replace(self.header, tensors=tensors)

    def _pack_piece(self, entry: Entry, piece: int, write: Callable[[int, NDArray[np.uint8]], None]) -> tuple[int, int]:
        start = piece * entry.piece_cols
        end = min(start + entry.piece_cols, entry.num_cols)
        spec = PackedSpec(name=entry.name, format=entry.format, num_cols=entry.num_cols, depth=entry.depth)
        codes = self._make(spec, start, end)
        shape = (codes.format, codes.num_rows, codes.depth)
        ensure(shape == (entry.format, end - start, entry.depth), f"{entry.name}: {shape} were made of rows {start} on")
        panels = self._packer.pack(codes)
        at = piece * entry.piece_bytes
        expected = min(entry.piece_bytes, entry.num_bytes - at)
        ensure(len(panels) == expected, f"{entry.name}: {len(panels)} bytes were packed, not {expected}")
        write(entry.offset + at, panels)
        return zlib.crc32(panels.data), len(panels)


_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""Python shares anonymous memory with children by default, which large pages are not given to."""


def _create(path: Path, num_bytes: int) -> int:
    """Make a file and take its space, so that a full disk is known before anything is packed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _take_space(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise CannotWriteError(error.strerror or str(error)) from error
    return descriptor


def _take_space(descriptor: int, num_bytes: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        os.truncate(descriptor, num_bytes)  # a file system that cannot promise space: a full disk shows when writing


def _write(descriptor: int, offset: int, panels: NDArray[np.uint8]) -> None:
    rest = panels.data
    try:
        while rest:
            written = os.pwrite(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written
    except OSError as error:
        raise CannotWriteError(error.strerror or str(error)) from error


def _finish(descriptor: int, temporary: Path, path: Path) -> None:
    """Flush the file to the disk and give it its name."""
    try:
        os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise CannotWriteError(error.strerror or str(error)) from error
    flush_directory(path.parent)
