"""Compiling constraints off the loop: one thread of low priority, and the grammars that were compiled last.

::

    submit(wanted) ─► future ─ cached? ─► done at once
                          └─ compile in the thread ─► grammar, or the error that says why there is none

Equal constraints that are waited for at the same time are compiled once, and those that nobody waits for any more not
at all, unless they are under way. Time and memory of one are bounded by the library's limits (`grammar.library`), their
number by `MAX_WAITING`.
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
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from trivium.base.errors import CapacityError

if TYPE_CHECKING:
    from trivium.grammar.constraint import Constraint
    from trivium.grammar.library import Grammar, Vocabulary

MAX_KEPT = 256
"""Grammars that are kept for the next who asks for them."""
MAX_WAITING = 256
"""Constraints that may wait to be compiled."""
_NICE = 10
_STACK_BYTES = 256 << 20
"""Of the thread that compiles: the library goes as deep as a chain of references does, some 10 KB for each."""


class CompilerStats(msgspec.Struct, frozen=True):
    """What was compiled so far."""

    compiled_total: int
    cached_total: int
    """Constraints that were there already, or on their way."""
    failed_total: int
    compile_seconds_total: float
    num_kept: int


class GrammarCompiler:
    """Turns constraints into grammars; used from any thread."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        """Begin with nothing: the vocabulary is made when the first constraint comes, in the compiling thread."""
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
        self._num_compiled = self._num_cached = self._num_failed = 0
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
            if known is not None and not (known.done() and (known.cancelled() or known.exception() is not None)):
                self._num_cached += 1
                self._grammars.move_to_end(key)
                if key in self._askers:
                    self._askers[key].append(asker)
                    self._note(key)
                return known
            self._make_room()
            if self._pool is None:
                self._pool = deep_pool()
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
        return CompilerStats(self._num_compiled, self._num_cached, self._num_failed, self._seconds, len(self._grammars))

    def close(self) -> None:
        """Give up what is waiting, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        for key in [key for key, each in self._grammars.items() if each.done()]:
            if len(self._grammars) < MAX_KEPT:
                return
            del self._grammars[key]
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


def key_of(wanted: Constraint) -> bytes:
    """Return what constraints share exactly when they are equal."""
    try:
        text = msgspec.json.encode(wanted)
    except UnicodeEncodeError:  # half of a character, which compiling refuses
        text = json.dumps(msgspec.to_builtins(wanted)).encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def deep_pool() -> ThreadPoolExecutor:
    """Return a thread that any constraint within the limits can be compiled in without an overflow of its stack."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, "trivium-grammar", _step_back)
        pool.submit(int)  # a pool starts its thread when it gets work
    finally:
        threading.stack_size(before)
    return pool


def _note_nowhere(_: Sequence[str]) -> None:
    """Nobody wants to know."""


def _step_back() -> None:
    """Let the threads that compute go first."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
