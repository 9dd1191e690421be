"""The pulse of the engine process: heartbeats from a thread of its own, so that a long step does not look like death.

Twice a second it says how long ago the loop last moved, so that a frozen process (no pulse) and a wedged loop (an old
pulse) both show; counters go along when they have changed. It also ends the process when the parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections import deque
from pathlib import Path

from trivium.engine.channel import Writer
from trivium.engine.messages import Heartbeat
from trivium.engine.wire import address, encode

logger = logging.getLogger(__name__)

PULSE_S = 0.5
EXIT_ORPHANED = 3


class Pulse(threading.Thread):
    """Sends heartbeats until stopped.

    Invariants:
        All heartbeats come from this thread, so that counters never arrive out of order.
    """

    def __init__(self, folder: Path, epoch: int, parent_pid: int) -> None:
        super().__init__(name="trivium-pulse", daemon=True)
        self._folder = folder
        self._epoch = epoch
        self._parent_pid = parent_pid
        self._is_due = threading.Event()
        self._is_stopped = False
        self._stats: deque[dict[str, object]] = deque(maxlen=1)
        self.last_move_s = time.monotonic()
        """When the loop last began an iteration; written by the loop's thread."""

    def run(self) -> None:
        """Send until stopped; end the process when the parent is gone."""
        outbox: Writer | None = None
        while not self._is_stopped:
            if os.getppid() != self._parent_pid:
                self._end_process()
            stats = self._stats.pop() if self._stats else None
            with contextlib.suppress(OSError):  # nobody reads any more: the parent has just ended, or is about to
                outbox = outbox or Writer(address(self._folder, "outbox"))
                outbox.send(encode(Heartbeat(self._epoch, time.monotonic() - self.last_move_s, stats)))
            self._is_due.wait(PULSE_S)
            self._is_due.clear()
        if outbox is not None:
            outbox.close()

    def tell(self, stats: dict[str, object], *, is_urgent: bool) -> None:
        """Send these counters with the next heartbeat, which is due now when they are urgent."""
        self._stats.append(stats)
        if is_urgent:
            self._is_due.set()

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped = True
        self._is_due.set()
        self.join()

    def _end_process(self) -> None:
        """End at once: whoever would wait for answers, or clean up behind us, is gone."""
        logger.error("the server process is gone; the engine ends")
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(EXIT_ORPHANED)
