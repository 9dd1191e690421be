"""A file mapped into memory, read-only, with every range checked against its real size.

Knows nothing of formats. A view that was taken keeps the mapping alive after `close`, so nothing dangles.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError, InternalError, ensure
from trivium.base.intmath import align_up


class MappedFile:
    """One file, mapped read-only.

    Attributes:
        path: The file.
        size: Its size in bytes when it was opened.
    """

    def __init__(self, path: Path, *, is_copied: bool = False) -> None:
        """Map `path`.

        Args:
            path: The file.
            is_copied: Whether its bytes are read into memory now, so that nobody who cuts the file short later can
                end this process.

        Raises:
            CheckpointError: The file is missing, unreadable or empty.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise CheckpointError(f"{path}: the file is empty (0 bytes)")
                if is_copied:
                    self._mapping: mmap.mmap | None = mmap.mmap(-1, self.size)
                    if file.readinto(self._mapping) != self.size:
                        raise CheckpointError(f"{path}: the file was cut short while it was read")
                else:
                    self._mapping = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error

    def bytes(self, start: int, end: int) -> NDArray[np.uint8]:
        """Return bytes [start, end) as a read-only view, [end - start] uint8.

        Raises:
            InternalError: The range is outside the file, or the file was closed.
        """
        ensure(0 <= start <= end <= self.size, f"{self.path}: bytes {start} to {end} of {self.size} were asked for")
        return np.frombuffer(self.buffer, np.uint8, end - start, start) if end > start else np.empty(0, np.uint8)

    def forget(self, start: int, end: int) -> None:
        """Let the system take back the memory of bytes [start, end), as far as whole pages go.

        They are still there to be read: views stay valid, and what is read again comes from the file again.
        """
        first, last = align_up(start, mmap.PAGESIZE), end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            with suppress(OSError):  # memory that somebody locked stays
                self.buffer.madvise(mmap.MADV_DONTNEED, first, last - first)

    @property
    def buffer(self) -> mmap.mmap:
        """The whole mapping, for reading headers.

        Raises:
            InternalError: The file was closed.
        """
        if self._mapping is None:
            raise InternalError(f"{self.path} is read after its checkpoint was closed")
        return self._mapping

    def close(self) -> None:
        """Give the mapping back; when views of it are still in use, it goes with the last of them."""
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        try:
            mapping.close()
        except BufferError:  # a view is in use: the mapping is freed with it
            return
