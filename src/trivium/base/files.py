"""Writing a file so that whoever reads its name finds the old content or the new, whole, also after a power cut."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".writing"
"""How the names end of files that are being written; one that stays behind is of a process that died."""


def write_atomically(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write `content` beside `path`, flush it to the disk, and give it the name.

    The directory is made where it is missing; `mode` is that of the file, from before anything is in it. Two processes
    may do this at once: the last one's content stays.

    Raises:
        OSError: The disk is full, or the directory cannot be written; `path` is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
            if mode is not None:
                Path(temporary).chmod(mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


def flush_directory(directory: Path) -> None:
    """Make the new name outlive a power cut; systems that cannot open directories do so by themselves."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
