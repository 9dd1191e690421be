"""The directory of a disk tier: who may use it, and the segments that lie in it.

::

    PATH/            mode 0700
      lock           held by the one process that uses the directory
      0000000007.kv  segments, mode 0600, in the order in which they were begun
      0000000008.kv

Everything in it can be told from its facts, so that `trivium cache` needs neither model nor engine.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from trivium.base.errors import ConfigError, ModelError
from trivium.tiers.segment import opened, read_head, scan
from trivium.weights.filelock import locked

_NAME = re.compile(r"(\d{10})\.kv")
_LOCK = "lock"
_LOCK_WAIT_S = 5.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment as it lies in a directory."""

    path: Path
    number: int
    num_bytes: int
    facts: Mapping[str, object] | None
    """Whose pages it holds; `None` when its beginning is damaged."""
    num_pages: int


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment."""
    return folder / f"{number:010d}.kv"


def segment_paths(folder: Path) -> list[tuple[int, Path]]:
    """List the segments of a directory by number; links and other things of that name are not among them.

    Raises:
        OSError: The directory cannot be read.
    """
    found = []
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name and stat.S_ISREG(path.lstat().st_mode):
            found.append((int(name[1]), path))
    return sorted(found)


def open_folder(folder: Path) -> ExitStack:
    """Make a directory ours until the returned stack is closed.

    Raises:
        ConfigError: Others can write it, it belongs to somebody else, another process uses it, or it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_folder(folder)
        with ExitStack() as stack:
            stack.enter_context(locked(folder / _LOCK, timeout_s=_LOCK_WAIT_S))
            (folder / _LOCK).chmod(0o600)
            return stack.pop_all()
    except ModelError as error:
        raise ConfigError(
            f"disk_cache: another process uses '{folder}'. Stop it, or give each server a directory of its own"
        ) from error
    except OSError as error:
        raise ConfigError(f"disk_cache: '{folder}' cannot be used: {error.strerror or error}") from error


def check_folder(folder: Path) -> None:
    """Refuse a directory whose pages somebody else could write.

    Raises:
        ConfigError: It is not ours alone to write.
        OSError: There is no such directory.
    """
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"disk_cache: '{folder}' is not a directory")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"disk_cache: '{folder}' belongs to user {found.st_uid}, and this process is user {os.geteuid()}; whoever "
            "can write it could change answers. Choose a directory of your own"
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise ConfigError(
            f"disk_cache: others can write '{folder}' (mode {stat.S_IMODE(found.st_mode):04o}), and whoever can write "
            f"it could change answers. Close it: chmod 700 '{folder}'"
        )


def list_segments(folder: Path) -> list[SegmentFile]:
    """Look at every segment without changing anything, also while a server uses the directory.

    Raises:
        ConfigError: There is no such directory, or it cannot be read.
    """
    try:
        return [_look(number, path) for number, path in segment_paths(folder)]
    except OSError as error:
        raise ConfigError(f"'{folder}' cannot be read: {error.strerror or error}") from error


def is_in_use(folder: Path) -> bool:
    """Return whether a process uses the directory."""
    if not (folder / _LOCK).exists():
        return False
    try:
        with locked(folder / _LOCK, timeout_s=0):
            return False
    except ModelError:
        return True


def wipe(folder: Path) -> tuple[int, int]:
    """Remove every segment of a directory that nobody uses; returns (segments, bytes) removed.

    Raises:
        ConfigError: A process uses it, or it cannot be written.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no directory '{folder}'")
    sizes = []
    with open_folder(folder):
        try:
            for _, path in segment_paths(folder):
                sizes.append(path.stat().st_size)
                path.unlink()
        except OSError as error:
            raise ConfigError(f"'{folder}' cannot be emptied: {error.strerror or error}") from error
    return len(sizes), sum(sizes)


def remove(path: Path) -> None:
    """Remove a segment, which may be gone already."""
    with suppress(OSError):
        path.unlink()


def _look(number: int, path: Path) -> SegmentFile:
    with opened(path) as file:
        size = os.fstat(file).st_size
        head = read_head(file)
        count = 0 if head is None else sum(1 for _ in scan(file, head[1], size))
    return SegmentFile(
        path=path, number=number, num_bytes=size, facts=None if head is None else head[0], num_pages=count
    )
