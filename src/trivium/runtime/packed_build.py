"""Packing every piece on every core, into a file that appears whole or not at all, or into memory.

::

    threads   read and pack piece 7 | 8 | 9 …          a few pieces ahead of the writer
    caller    … 4 | 5 | 6 ──► [ chunk of 4 MiB, at a multiple of 4 MiB ] ──► file

The chunks matter: a system that caches files in large pages then maps them as large pages, which a step reads 3 to 8 %
faster than small ones (measured on Linux 6.18, ext4).
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
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
"""Takes the bytes at an offset; offsets rise."""

_CHUNK_BYTES = 4 << 20
_PIECES_AHEAD = 2
"""Per core."""


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
        """Write a file, whole or not at all, and map it.

        Raises:
            CannotWriteError: The disk is full, or the directory cannot be written; nothing is left there.
        """
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        try:
            with ExitStack() as stack:
                descriptor = _create(temporary, self.header.file_bytes)
                stack.callback(os.close, descriptor)
                chunks = _Chunks(descriptor)
                packed = self._pack(chunks.write)
                chunks.flush()
                _write(descriptor, 0, np.frombuffer(encode(packed), np.uint8))
                _finish(descriptor, temporary, path)
            with _writing():
                buffer = map_file(path, packed.file_bytes)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
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
        """Pack every piece, write them in order, and return the header with their checksums."""
        total = sum(entry.num_bytes for entry in self.header.tensors)
        checksums: list[list[int]] = [[] for _ in self.header.tensors]
        done = 0
        for tensor, offset, panels, checksum in self._pieces():
            write(offset, panels)
            checksums[tensor].append(checksum)
            done += len(panels)
            self._report(done, total)
        tensors = tuple(
            msgspec.structs.replace(entry, checksums=tuple(sums))
            for entry, sums in zip(self.header.tensors, checksums, strict=True)
        )
        return msgspec.structs.replace(self.header, tensors=tensors)

    def _pieces(self) -> Iterator[tuple[int, int, NDArray[np.uint8], int]]:
        """Yield (tensor, offset, panels, checksum) in order; a few are packed ahead, so that memory is bounded."""
        todo = (
            (tensor, entry, piece)
            for tensor, entry in enumerate(self.header.tensors)
            for piece in range(len(entry.checksums))
        )
        pool = ThreadPoolExecutor(usable_cores())
        ahead: deque[tuple[int, int, Future[tuple[NDArray[np.uint8], int]]]] = deque()
        try:
            for tensor, entry, piece in todo:
                offset = entry.offset + piece * entry.piece_bytes
                ahead.append((tensor, offset, pool.submit(self._pack_piece, entry, piece)))
                if len(ahead) > _PIECES_AHEAD * usable_cores():
                    first, at, future = ahead.popleft()
                    yield first, at, *future.result()
            for first, at, future in ahead:
                yield first, at, *future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _pack_piece(self, entry: Entry, piece: int) -> tuple[NDArray[np.uint8], int]:
        start = piece * entry.piece_cols
        end = min(start + entry.piece_cols, entry.num_cols)
        spec = PackedSpec(name=entry.name, format=entry.format, num_cols=entry.num_cols, depth=entry.depth)
        codes = self._make(spec, start, end)
        shape = (codes.format, codes.num_rows, codes.depth)
        ensure(shape == (entry.format, end - start, entry.depth), f"{entry.name}: {shape} were made of rows {start} on")
        panels = self._packer.pack(codes)
        expected = min(entry.piece_bytes, entry.num_bytes - piece * entry.piece_bytes)
        ensure(panels.nbytes == expected, f"{entry.name}: {panels.nbytes} bytes were packed, not {expected}")
        panels = panels.reshape(-1)
        return panels, zlib.crc32(panels.data)


class _Chunks:
    """Bytes at rising offsets, gathered into large chunks at multiples of their size; gaps become zeros."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunk = np.zeros(_CHUNK_BYTES, np.uint8)
        self._start = 0
        """Offset of the chunk in the file."""
        self._end = 0
        """Bytes of the chunk that are in use."""

    def write(self, offset: int, panels: NDArray[np.uint8]) -> None:
        """Take bytes that belong at `offset`."""
        done = 0
        while done < len(panels):
            at = offset + done - self._start
            if at >= _CHUNK_BYTES:
                self.flush()
                continue
            taken = min(len(panels) - done, _CHUNK_BYTES - at)
            self._chunk[at : at + taken] = panels[done : done + taken]
            self._end, done = at + taken, done + taken

    def flush(self) -> None:
        """Write the chunk, and begin the next."""
        _write(self._descriptor, self._start, self._chunk[: self._end])
        self._start += _CHUNK_BYTES
        self._end = 0
        self._chunk[:] = 0


_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""Python shares anonymous memory with children by default, which large pages are not given to."""


@contextmanager
def _writing() -> Iterator[None]:
    """Turn the system's errors into `CannotWriteError`, but not those of reading a checkpoint meanwhile."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(error.strerror or str(error)) from error


@_writing()
def _create(path: Path, num_bytes: int) -> int:
    """Make a file and take its space, so that a full disk is known before anything is packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            os.close(descriptor)
            raise
        os.truncate(descriptor, num_bytes)  # a file system that cannot promise space: a full disk shows when writing
    return descriptor


@_writing()
def _write(descriptor: int, offset: int, content: NDArray[np.uint8]) -> None:
    rest = content.data
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


@_writing()
def _finish(descriptor: int, temporary: Path, path: Path) -> None:
    """Flush the file to the disk and give it its name.

    What was written lies in the system's cache in small pages. Forgotten there, it comes back through `map_file` in
    large ones, for this process and all that map it later: weights are then read a tenth faster.
    """
    os.fsync(descriptor)
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a file system without a cache of its own
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    temporary.replace(path)
    flush_directory(path.parent)
