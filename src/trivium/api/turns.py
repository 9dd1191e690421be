"""A lock that is given to its waiters in the order of their arrival.

`threading.Lock` lets whoever asks first have it: a thread that gives it back and takes it again at once, as one that
runs steps does, would keep all others waiting until its work is done.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """Mutual exclusion, first come first served.

    `try_enter` never waits, so that a finalizer, which may run in the middle of anything, can use it.

    Invariants:
        While somebody waits, the turn is held: it is passed on, never given back.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        """Guards the two fields below; never held while waiting for a turn."""
        self._waiting: deque[threading.Lock] = deque()
        self._is_held = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return
            own = threading.Lock()
            own.acquire()
            self._waiting.append(own)
        try:
            own.acquire()  # whoever leaves before us releases it
        except BaseException:
            self._give_up(own)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def try_enter(self) -> bool:
        """Take the turn if nobody has it; returns whether it was taken, in which case `leave` must follow."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self._is_held:
                return False
            self._is_held = True
            return True
        finally:
            self._mutex.release()

    def leave(self) -> None:
        """End the turn; whoever waits longest has the next."""
        with self._mutex:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._is_held = False

    def _give_up(self, own: threading.Lock) -> None:
        """Wait no longer: the wait was interrupted, perhaps just after the turn had come."""
        with self._mutex:
            if own in self._waiting:
                self._waiting.remove(own)
            else:
                self._pass_on()
