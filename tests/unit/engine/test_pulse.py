"""Heartbeats: alone in time, with counters when those changed, and the end of an engine whose server is gone."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tiny_engine import tiny_loop
from trivium.config.sampling import SamplingParams
from trivium.engine import pulse
from trivium.engine.channel import Frames, frame, listening
from trivium.engine.messages import Drain, FromEngine, Heartbeat, Ready, Submit, ToEngine
from trivium.engine.process import EngineProcess
from trivium.engine.wire import Sockets, decode_from_engine, encode

NEVER_S = 3600.0
PATIENCE_S = 10


class Far:
    """The client's end of an engine's sockets."""

    def __init__(self) -> None:
        self.sockets = Sockets()
        self._inbox, self._outbox = listening(self.sockets.outbox), listening(self.sockets.inbox)
        self._heard: dict[socket.socket, Frames] = {}
        self._arrived: deque[bytes] = deque()
        self._mouth: socket.socket | None = None

    def send(self, message: ToEngine) -> None:
        if self._mouth is None:
            self._mouth, _ = self._outbox.accept()
        self._mouth.sendall(frame(encode(message)))

    def next(self) -> FromEngine:
        while not self._arrived:
            ready, _, _ = select.select([self._inbox, *self._heard], [], [], PATIENCE_S)
            assert ready, "the engine said nothing"
            for end in ready:
                if end is self._inbox:
                    self._heard[end.accept()[0]] = Frames()
                elif data := end.recv(1 << 16):
                    self._arrived.extend(self._heard[end].feed(data))
                else:
                    del self._heard[end]
                    end.close()
        return decode_from_engine(self._arrived.popleft())

    def beat(self) -> Heartbeat:
        message = self.next()
        assert isinstance(message, Heartbeat)
        return message

    def close(self) -> None:
        for end in (self._inbox, self._outbox, *self._heard, *([self._mouth] if self._mouth else [])):
            end.close()
        self.sockets.close()


@pytest.fixture
def far() -> Iterator[Far]:
    end = Far()
    yield end
    end.close()


def test_counters_go_with_one_heartbeat_and_later_ones_carry_none(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PULSE_S", 0.01)
    beating = pulse.Pulse(far.sockets.folder, 3, os.getppid())
    beating.tell({"num_running": 1}, is_urgent=False)
    beating.tell({"num_running": 0}, is_urgent=False)
    beating.start()
    first, second = far.beat(), far.beat()
    beating.stop()
    assert (first.epoch, first.stats, second.stats) == (3, {"num_running": 0}, None)
    assert 0 <= first.loop_age_s < second.loop_age_s


def test_urgent_counters_do_not_wait_for_the_next_beat(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PULSE_S", NEVER_S)
    beating = pulse.Pulse(far.sockets.folder, 1, os.getppid())
    beating.start()
    assert far.beat().stats is None
    beating.tell({"num_running": 0}, is_urgent=True)
    assert far.beat().stats == {"num_running": 0}
    beating.stop()


def test_an_engine_that_runs_out_of_work_says_so_at_once(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "PULSE_S", NEVER_S)
    engine = EngineProcess(far.sockets.folder, 1, os.getppid())
    serving = threading.Thread(target=engine.serve, args=(lambda _: tiny_loop(),))
    serving.start()
    opening = [far.next() for _ in range(3)]  # the first beat, that it is ready, how it stands
    assert sum(isinstance(message, Ready) for message in opening) == 1
    params = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
    for number in (1, 2):
        far.send(Submit(request_id=f"r{number}", prompt_ids=[40, 41, 42], params=params))
        stats: dict[str, Any] = {}
        while stats.get("finished_total") != {"length": number}:
            message = far.next()
            stats = (message.stats if isinstance(message, Heartbeat) else None) or stats
        assert (stats["num_running"], stats["num_waiting"]) == (0, 0)
        assert stats["generation_tokens_total"] == 7 * number
    far.send(Drain())
    serving.join(10)
    assert not serving.is_alive()
    assert not far.sockets.folder.exists()


@pytest.mark.parametrize("how", ["while it serves", "before it looked"])
def test_an_engine_without_its_server_ends_and_removes_its_folder(far: Far, how: str) -> None:
    program = (
        "import sys, time; from pathlib import Path; from trivium.engine.pulse import Pulse\n"
        "Pulse(Path(sys.argv[1]), 1, int(sys.argv[2])).start(); time.sleep(30)"
    )
    # The middle process stands for the server: it starts the engine and is gone, or names a server that is.
    folder = str(far.sockets.folder)
    inner = [sys.executable, "-c", program, folder]
    if how == "before it looked":
        ended = subprocess.run([*inner, str(1 << 30)], capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        assert ended.returncode == pulse.EXIT_ORPHANED
        assert "the server process is gone" in ended.stderr
    else:
        starter = f"import os, subprocess, sys; subprocess.Popen([*{inner!r}, str(os.getpid())], stderr=1)"
        ended = subprocess.run(  # noqa: S603  (waits for the engine too, which holds the pipe)
            [sys.executable, "-c", starter], capture_output=True, text=True, timeout=20, check=False
        )
        assert ended.returncode == 0
        assert "the server process is gone" in ended.stdout
    assert not Path(folder).exists()
