"""One process at a time: an advisory lock on a file, released by the system when its holder dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trivium.base.errors import ModelError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_POLL_S = 0.2


@contextmanager
def locked(path: Path, *, timeout_s: float | None = None, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of `path`, which is made with its directories and never removed.

    Args:
        path: The lock file.
        timeout_s: How long to wait for another process; `None` waits for ever.
        on_wait: Called once when another process holds the lock.

    Raises:
        ModelError: Another process held the lock for all of `timeout_s`.
        OSError: The file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        started = time.monotonic()
        is_waiting = False
        while not _try_lock(file):
            if timeout_s is not None and time.monotonic() - started >= timeout_s:
                raise ModelError(f"another process is using this model (lock {path}); try again when it is done")
            if not is_waiting:
                is_waiting = True
                on_wait()
            time.sleep(_POLL_S)
        yield  # closing the file releases the lock
