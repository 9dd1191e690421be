"""Compiling constraints off the loop: one thread of low priority, and the grammars that were compiled last.

::

    submit(wanted) ─► future ─ cached? ─► done at once
                          └─ compile in the thread ─► grammar, or the error that says why there is none

Equal constraints that are waited for at the same time are compiled once, and those that nobody waits for any more not
at all, unless they are under way. Time and memory of one are bounded by the library's limits (`grammar.library`), their
number by `MAX_WAITING`. Of those that are kept, the least used go first: where there are too many, or where they take
too much by what they say of themselves (`Grammar.num_bytes`), which grows as they are used. Refusals are kept too:
whoever asks for the same again is told at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from trivium.base.errors import CapacityError, RequestError
from trivium.grammar.deep_stack import deep_pool

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from trivium.grammar.constraint import Constraint
    from trivium.grammar.library import Vocabulary
    from trivium.grammar.matcher import Grammar

MAX_KEPT = 256
"""Grammars that are kept for the next who asks for them."""
MAX_WAITING = 256
"""Constraints that may wait to be compiled."""
_NICE = 10
DEFAULT_KEPT_BYTES = 256 << 20
"""What kept grammars may take together, about."""


class CompilerStats(msgspec.Struct, frozen=True):
    """What was compiled so far."""

    compiled_total: int
    cached_total: int
    """Constraints that were there already, or on their way."""
    failed_total: int
    compile_seconds_total: float
    num_evicted_total: int
    """Grammars that were given up to make room, or because they could take no more answers."""
    num_kept: int
    kept_bytes: int
    """About what these take."""


class GrammarCompiler:
    """Turns constraints into grammars; used from any thread."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary], *, max_kept_bytes: int = DEFAULT_KEPT_BYTES) -> None:
        """Begin with nothing: the vocabulary is made when the first constraint comes, in the compiling thread."""
        self._max_kept_bytes = max_kept_bytes
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._grammars: OrderedDict[bytes, Future[Grammar]] = OrderedDict()
        self._askers: dict[bytes, list[str]] = {}
        """Per constraint that is not compiled yet: who waits for it."""
        self._current: bytes | None = None
        """The constraint that is being compiled."""
        self.note: Callable[[Sequence[str]], None] = _note_nowhere
        """Told who waits for what is being compiled whenever that changes, from whichever thread changes it."""
        self._num_compiled = self._num_cached = self._num_failed = self._num_evicted = 0
        self._seconds = 0.0

    def submit(self, wanted: Constraint, asker: str = "") -> Future[Grammar]:
        """Return the grammar of a constraint, or its promise; an error that the promise holds is a `RequestError`.

        Args:
            wanted: Valid.
            asker: The request that asks, where it may `leave`.

        Raises:
            CapacityError: Too many wait already.
        """
        key = key_of(wanted)
        with self._lock:
            known = self._grammars.get(key)
            if known is not None and not _is_void(known):
                self._num_cached += 1
                self._grammars.move_to_end(key)
                if key in self._askers:
                    self._askers[key].append(asker)
                    self._note(key)
                return known
            if known is not None:
                del self._grammars[key]
                self._num_evicted += _is_there(known)
            self._make_room()
            if self._pool is None:
                self._pool = deep_pool("trivium-grammar", _step_back)
            self._askers[key] = [asker]
            promise = self._grammars[key] = self._pool.submit(self._compile, key, wanted)
            return promise

    def leave(self, asker: str) -> None:
        """Take note that a request waits no more; what only it waited for is not compiled, unless it is begun."""
        with self._lock:
            for key, askers in list(self._askers.items()):
                if asker in askers:
                    askers.remove(asker)
                    self._note(key)
                    if not askers and self._grammars[key].cancel():
                        del self._grammars[key], self._askers[key]

    @property
    def stats(self) -> CompilerStats:
        """What was compiled so far."""
        with self._lock:
            num_kept, kept_bytes = len(self._grammars), sum(map(_bytes_of, self._grammars.values()))
        return CompilerStats(
            compiled_total=self._num_compiled,
            cached_total=self._num_cached,
            failed_total=self._num_failed,
            compile_seconds_total=self._seconds,
            num_evicted_total=self._num_evicted,
            num_kept=num_kept,
            kept_bytes=kept_bytes,
        )

    def close(self) -> None:
        """Give up what is waiting, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        kept_bytes = sum(map(_bytes_of, self._grammars.values()))
        for key in [key for key, each in self._grammars.items() if each.done()]:
            if len(self._grammars) < MAX_KEPT and kept_bytes <= self._max_kept_bytes:
                return
            promise = self._grammars.pop(key)
            kept_bytes -= _bytes_of(promise)
            self._num_evicted += _is_there(promise)
        num_waiting = len(self._grammars)
        if num_waiting >= MAX_WAITING:
            raise CapacityError(
                f"{num_waiting} constraints wait to be compiled, of at most {MAX_WAITING}; try again later"
            )

    def _compile(self, key: bytes, wanted: Constraint) -> Grammar:
        with self._lock:
            self._current = key
            self._note(key)
        try:
            return self._compile_now(wanted)
        finally:
            with self._lock:
                self._askers[key].clear()
                self._note(key)
                del self._askers[key]
                self._current = None

    def _note(self, key: bytes) -> None:
        if key == self._current:
            self.note([asker for asker in self._askers[key] if asker])

    def _compile_now(self, wanted: Constraint) -> Grammar:
        if self._vocabulary is None:
            self._vocabulary = self._make_vocabulary()
        began_s = time.perf_counter()
        try:
            grammar = self._vocabulary.compile(wanted)
        except BaseException:
            self._num_failed += 1
            raise
        finally:
            self._seconds += time.perf_counter() - began_s
        self._num_compiled += 1
        return grammar


def _is_void(promise: Future[Grammar]) -> bool:
    """Return whether it says nothing of the next: nobody waited, something broke, or the grammar is used up."""
    if not promise.done():
        return False
    if promise.cancelled():
        return True
    error = promise.exception()
    return promise.result().is_spent if error is None else not isinstance(error, RequestError)


def _is_there(promise: Future[Grammar]) -> bool:
    return promise.done() and not promise.cancelled() and promise.exception() is None


def _bytes_of(promise: Future[Grammar]) -> int:
    return promise.result().num_bytes if _is_there(promise) else 0


def key_of(wanted: Constraint) -> bytes:
    """Return what constraints share exactly when they are equal."""
    try:
        text = msgspec.json.encode(wanted)
    except UnicodeEncodeError:  # half of a character, which compiling refuses
        text = json.dumps(msgspec.to_builtins(wanted)).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def _note_nowhere(_: Sequence[str]) -> None:
    """Nobody wants to know."""


def _step_back() -> None:
    """Let the threads that compute go first."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
