"""What an engine is at work on, noted where it outlives the process: a small file in the folder of its sockets.

::

    | step, even | step, odd | request being admitted | requests whose constraint is being compiled |

                                                              four places of PLACE_BYTES; the file is sparse
    each: | number: 8 | length: 4 | checksum: 4 | [[request id, choice], ...] as msgpack |

A step is noted when it is made of other answers than the one before; steps that go on with the same answers cost
nothing. The two places for steps are written in turn, so that a death in the middle of writing leaves the other one
whole. Written with plain system calls: what they have taken is there when the process is gone, and a full disk is an
error rather than a signal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from zlib import crc32

import msgspec

logger = logging.getLogger(__name__)

FILE_NAME = "journal"
PLACE_BYTES = 1 << 20
_HEAD = Struct("<QII")
_ADMITTED_PLACE, _COMPILED_PLACE = 2, 3
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, int]]).decode


@dataclass(frozen=True, slots=True)
class LastWork:
    """What an engine was at work on when it ended."""

    step: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Requests of the last step, and which of their choices were in it."""
    admitted: str | None = None
    """The request that was just being admitted, if the engine ended in that."""
    compiled: tuple[str, ...] = ()
    """The requests whose constraint was being compiled, by a thread beside the loop."""

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The requests that may have ended it."""
        in_loop = tuple(self.step) if self.admitted is None else (self.admitted,)
        return tuple(dict.fromkeys((*in_loop, *self.compiled)))


class Journal:
    """The engine's side; used from the loop's thread, but for `note_compiling`, which any thread may call.

    A journal that cannot be written is given up with a warning: the engine works, and a death names nobody.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file."""
        self._file: int | None = None
        self._number = 0
        self._lock = threading.Lock()
        """Held to write, so that nobody writes to a file that another thread has closed."""
        with contextlib.suppress(OSError):
            self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def note_step(self, answers: Iterable[tuple[str, int]]) -> None:
        """Note the answers, as (request id, choice), that run from now on."""
        self._number += 1
        self._write(self._number % 2, _encode(list(answers)))

    @contextlib.contextmanager
    def admitting(self, request_id: str) -> Iterator[None]:
        """Note that a request is being looked at, while the block runs."""
        self._write(_ADMITTED_PLACE, _encode([(request_id, 0)]))
        try:
            yield
        finally:
            self._write(_ADMITTED_PLACE, b"")

    def note_compiling(self, request_ids: Iterable[str]) -> None:
        """Note the requests whose constraint is compiled from now on; none when nothing is."""
        self._write(_COMPILED_PLACE, _encode([(request_id, 0) for request_id in request_ids]))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, place: int, payload: bytes) -> None:
        if len(payload) > PLACE_BYTES - _HEAD.size:
            return
        record = _HEAD.pack(self._number, len(payload), _checksum(self._number, payload)) + payload
        with self._lock:
            if self._file is None:
                return
            try:
                os.pwrite(self._file, record, place * PLACE_BYTES)
            except OSError as error:
                logger.warning(
                    "the journal cannot be written any more (%s); a death of this engine names nobody", error
                )
                self._close()


def admitting(journal: Journal | None, request_id: str) -> AbstractContextManager[None]:
    """Note that a request is being looked at, while the block runs, where there is a journal."""
    return contextlib.nullcontext() if journal is None else journal.admitting(request_id)


def read_journal(folder: Path) -> LastWork:
    """Read what an engine that has ended was at work on; nothing where it wrote nothing."""
    try:
        file = os.open(folder / FILE_NAME, os.O_RDONLY)
    except OSError:
        return LastWork()
    try:
        steps = [found for place in (0, 1) if (found := _read(file, place)) is not None]
        admitted, compiled = _read(file, _ADMITTED_PLACE), _read(file, _COMPILED_PLACE)
    finally:
        os.close(file)
    step: dict[str, tuple[int, ...]] = {}
    for request_id, choice in max(steps, key=lambda found: found[0])[1] if steps else ():
        step[request_id] = (*step.get(request_id, ()), choice)
    return LastWork(
        step,
        admitted[1][0][0] if admitted is not None and admitted[1] else None,
        tuple(request_id for request_id, _ in compiled[1]) if compiled is not None else (),
    )


def _read(file: int, place: int) -> tuple[int, list[tuple[str, int]]] | None:
    """Return number and content of a place; `None` when it was never written, or not to its end."""
    head = os.pread(file, _HEAD.size, place * PLACE_BYTES)
    if len(head) < _HEAD.size:
        return None
    number, length, checksum = _HEAD.unpack(head)
    payload = os.pread(file, length, place * PLACE_BYTES + _HEAD.size)
    if not payload or len(payload) < length or _checksum(number, payload) != checksum:
        return None
    return number, _decode(payload)


def _checksum(number: int, payload: bytes) -> int:
    """Cover the number too: a place of which only that was written must not pass for a new one."""
    return crc32(payload, crc32(number.to_bytes(8, "little")))
