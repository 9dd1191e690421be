"""Packed weights, found again at the next start: one file per checkpoint and layout, mapped read-only.

::

    records of codes ── pack ──► panels ──► <cache>/packed/<checkpoint>-<layout>.weights ── map ──► matrices
                                            <cache>/locks/packed-<checkpoint>-<layout>.lock, held while it is written

The first start packs, piece by piece on every core, into a file that gets its name when it is complete and flushed; a
second process waits for it. Later starts map it: what is never read is never loaded. A file that is damaged or of
another version is packed anew, with one line in the log. Where nothing can be written (disk full, cache read-only), the
weights are packed into memory at every start, with one warning; it stops nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from trivium.base.errors import ModelError
from trivium.base.files import TEMPORARY
from trivium.config.sizes import format_bytes
from trivium.runtime.packed_build import Build, CannotWriteError, Make, PackedWeights, Progress, weights_of
from trivium.runtime.packed_file import Header, PackedFileError, PackedSpec, Packer, lay_out, map_file, read_header
from trivium.weights.filelock import locked

__all__ = ["Make", "PackedCache", "PackedEntry", "PackedSpec", "PackedWeights", "Packer"]

logger = logging.getLogger(__name__)

SUFFIX = ".weights"
_DAY_S = 86400.0
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEntry:
    """A file in the cache."""

    name: str
    path: Path
    num_bytes: int
    """On disk, with what unfinished writing left beside it."""
    age_days: float
    """Since it was last used."""
    header: Header | None
    """`None` when it cannot be used."""
    problem: str = ""

    def is_foreign(self, layout: str) -> str | None:
        """Return why kernels with this layout will not use it again, or nothing."""
        if self.header is None:
            return "unusable"
        return "other kernels" if self.header.layout != layout else None


class PackedCache:
    """The packed weights of one cache directory."""

    def __init__(self, cache_directory: Path) -> None:
        """Look into `cache_directory`, which need not exist."""
        self._root = cache_directory

    def path(self, fingerprint: str, wanted: Sequence[PackedSpec], packer: Packer) -> Path:
        """Return where these weights are kept, or would be."""
        digest = hashlib.blake2b(packer.layout.encode(), digest_size=_DIGITS // 2)
        for spec in wanted:
            digest.update(f"{spec.name}\0{spec.format}\0{spec.num_cols}\0{spec.depth}\n".encode())
        return self._root / "packed" / f"{fingerprint[:_DIGITS]}-{digest.hexdigest()}{SUFFIX}"

    def open(
        self,
        model: str,
        fingerprint: str,
        wanted: Sequence[PackedSpec],
        packer: Packer,
        make: Make,
        *,
        report: Progress = lambda done, total: None,
    ) -> PackedWeights:
        """Map packed weights, packing them first where they are not here.

        Args:
            model: What the checkpoint is called, for those who list the cache.
            fingerprint: Of the checkpoint; hexadecimal.
            wanted: Matrices, of different names, in the order in which they should lie in the file.
            packer: Lays records out.
            make: Reads a run of whole panels of rows.
            report: Told how packing goes; not called when there is nothing to pack.

        Raises:
            CheckpointError: From `make`.
        """
        header = lay_out(model, fingerprint, wanted, packer)
        path = self.path(fingerprint, wanted, packer)
        found = _load(path, header)
        if found is not None:
            return found
        build = Build(header, packer, make, report)
        try:
            return self._write_or_wait(path, build)
        except CannotWriteError as error:
            logger.warning(
                "packed weights (%s) are kept in memory and packed at every start, because %s cannot be written: %s. "
                "Free space, or set cache_dir or TRIVIUM_CACHE_DIR to a directory that can be written",
                format_bytes(header.file_bytes),
                path,
                error,
            )
        return build.in_memory()

    def entries(self) -> list[PackedEntry]:
        """List the files in the cache, the most recently used first."""
        root = self._root / "packed"
        names = {path.name.partition(SUFFIX)[0] for path in root.glob(f"*{SUFFIX}*")} if root.is_dir() else set()
        return sorted((self._entry(name) for name in names), key=lambda entry: (entry.age_days, entry.name))

    def remove(self, entry: PackedEntry) -> int:
        """Remove a file and what unfinished writing left beside it; processes that have it mapped keep it.

        Returns:
            Bytes freed.

        Raises:
            ModelError: Another process is writing it, or the cache cannot be written.
        """
        try:
            with locked(self._lock(entry.path), timeout_s=0):
                for path in (*_leftovers(entry.path), entry.path):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"packed weights {entry.path} cannot be removed: {error.strerror or error}") from error
        return entry.num_bytes

    def prune(self, layout: str, *, unused_days: float) -> list[PackedEntry]:
        """Remove files that kernels with `layout` cannot use, and those not used for `unused_days`.

        Files that another process is writing, or that cannot be removed, stay, with a line in the log.

        Returns:
            What was removed.
        """
        removed = []
        for entry in self.entries():
            if entry.is_foreign(layout) is None and entry.age_days < unused_days:
                continue
            try:
                self.remove(entry)
            except ModelError as error:
                logger.warning("%s", error)
            else:
                removed.append(entry)
        return removed

    def _lock(self, path: Path) -> Path:
        return self._root / "locks" / f"packed-{path.stem}.lock"

    def _entry(self, name: str) -> PackedEntry:
        path = self._root / "packed" / f"{name}{SUFFIX}"
        header, problem = None, ""
        try:
            header = read_header(path)
        except (PackedFileError, OSError) as error:
            problem = str(error)
        found = [each.stat() for each in (path, *_leftovers(path)) if each.exists()]
        used_s = max((each.st_mtime for each in found), default=time.time())
        return PackedEntry(
            name=name,
            path=path,
            num_bytes=sum(each.st_size for each in found),
            age_days=max(0.0, time.time() - used_s) / _DAY_S,
            header=header,
            problem=problem,
        )

    def _write_or_wait(self, path: Path, build: Build) -> PackedWeights:
        def say() -> None:
            logger.info("another process is packing these weights; waiting for it")

        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._lock(path), on_wait=say))
            except OSError as error:
                raise CannotWriteError(error.strerror or str(error)) from error
            found = _load(path, build.header, is_quiet=True)  # by the process that was waited for
            if found is not None:
                return found
            for leftover in _leftovers(path):  # of writers that died: the lock is ours
                with suppress(OSError):
                    leftover.unlink()
            return build.in_file(path)


def _load(path: Path, expected: Header, *, is_quiet: bool = False) -> PackedWeights | None:
    """Map a file, or return nothing; one line says why a file that is there is not used."""
    try:
        header = read_header(path)
        header.require(expected)
        buffer = map_file(path, header.file_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (PackedFileError, OSError) as error:
        if not is_quiet:
            logger.warning("packing weights anew: %s cannot be used: %s", path, error)
        return None
    with suppress(OSError):  # for `prune`; a cache that cannot be written has nothing pruned either
        os.utime(path)
    return weights_of(header, buffer, path, 0.0)


def _leftovers(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*{TEMPORARY}"))
