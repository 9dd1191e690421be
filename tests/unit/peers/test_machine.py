"""Locks, process trees, timed programs and servers, with programs of a few lines."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.engines.engine import Program
from benchmarks.peers.machine import Meter, busy_s, locked, process_tree, processes, raise_weight
from benchmarks.peers.servers import Server, ServerFailedError, Servers
from benchmarks.peers.stream import read_rate
from benchmarks.peers.turns import run_timed

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

SERVER = """
import http.server, json, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200); self.end_headers(); self.wfile.write(json.dumps(body).encode())
    def do_GET(self): self.answer({"data": [{"id": "m"}]})
    def do_POST(self): self.answer({"choices": [{"text": "a"}]})
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def python(script: str, *words: object) -> Program:
    return Program.of(sys.executable, "-c", script, *map(str, words))


def state_of(server: Server) -> str:
    return Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for_state(server: Server, states: str) -> bool:
    return any(state_of(server) in states or time.sleep(0.01) for _ in range(500))


def write_stat(
    proc: Path, pid: int, parent: int, user: int, system: int, started: int = 7, name: str = "a b) c"
) -> None:
    (proc / str(pid)).mkdir()
    middle = " ".join(["0"] * 9)
    rest = " ".join(["0"] * 6)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {middle} {user} {system} {rest} {started} 0\n")


def test_a_tree_is_a_process_and_all_that_descend_from_it(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    write_stat(tmp_path, 1, 0, 0, 0)
    write_stat(tmp_path, 10, 1, 3 * ticks, ticks)
    write_stat(tmp_path, 11, 10, ticks, 0, started=42)
    write_stat(tmp_path, 12, 11, 0, ticks)
    write_stat(tmp_path, 20, 1, 50 * ticks, 0)
    (tmp_path / "self").mkdir()
    tree = process_tree(10, tmp_path)
    assert {pid: member.processor_s for pid, member in tree.items()} == {10: 4.0, 11: 1.0, 12: 1.0}
    assert tree[11].started_ticks == 42


def test_busy_seconds_leave_out_idling_and_waiting_for_disks_and_count_a_guest_once(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    columns = [ticks * value for value in (1, 2, 4, 1000, 2000, 8, 16, 32, 5000, 6000)]
    (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, columns))}\ncpu0 1 2 3\n")
    assert busy_s(tmp_path / "stat") == 1 + 2 + 4 + 8 + 16 + 32


def test_what_others_took_is_a_share_of_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([100.0, 109.0])
    clock = iter([50.0, 60.0])
    monkeypatch.setattr("benchmarks.peers.machine.busy_s", lambda: next(readings))
    monkeypatch.setattr("benchmarks.peers.machine.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("benchmarks.peers.machine.os.cpu_count", lambda: 2)
    shares = Meter().start().stop(own_s=7.0)
    assert (shares.seconds, shares.others) == (10.0, 0.1)


def test_a_lock_keeps_others_out_until_it_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    attempt = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with locked(path):
        assert run_timed(python(attempt, path), 30.0).code == 1
    assert run_timed(python(attempt, path), 30.0).code == 0


def test_a_timed_program_tells_its_output_code_and_processor_time() -> None:
    script = (
        "import sys, time; print('out'); print('err', file=sys.stderr)\n"
        "while time.process_time() < 0.2: pass\n"
        "sys.exit(3)"
    )
    timed = run_timed(python(script), 30.0)
    assert (timed.output, timed.errors, timed.code) == ("out\n", "err\n", 3)
    assert 0.2 <= timed.processor_s < 10


def test_a_program_that_takes_too_long_is_ended_with_its_children() -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    began_s = time.perf_counter()
    timed = run_timed(python(script), 1.0)
    assert time.perf_counter() - began_s < 30
    assert timed.code == 124
    assert "not done after 1 s" in timed.errors
    child = int(timed.output)
    assert any(child not in processes() or time.sleep(0.01) for _ in range(500))


def test_precedence_that_is_not_allowed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("benchmarks.peers.machine.os.setpriority", refuse)
    assert raise_weight(os.getpid()) is False


def test_memory_is_read_at_some_rate() -> None:
    assert read_rate(1, part_bytes=1 << 20) > 1e6


def test_a_server_is_started_frozen_thawed_and_ended(tmp_path: Path) -> None:
    servers = Servers()
    command = lambda port: python(SERVER, port)  # noqa: E731
    server, start_s = servers.take("a", command, tmp_path / "log")
    assert start_s is not None
    servers.give_back("a", server, keep=True)
    assert wait_for_state(server, "T")
    again, none = servers.take("a", command, tmp_path / "log")
    assert (again, none) == (server, None)
    assert wait_for_state(server, "SR")
    servers.give_back("a", server, keep=True)
    servers.close()
    assert server.process.returncode is not None


def test_a_server_that_is_not_kept_is_ended_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "stubborn = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'\n"
        "child = subprocess.Popen([sys.executable, '-c', stubborn], start_new_session=True)\n"
        f"print(child.pid, flush=True)\n{SERVER}"
    )
    server, _ = Servers().take("a", lambda port: python(script, port), tmp_path / "log")
    Servers().give_back("a", server, keep=False)
    child = int((tmp_path / "log").read_text().split()[0])
    assert server.process.returncode is not None
    assert child not in processes()


def test_a_server_that_ends_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match=r"ended with 7.*\n.*no such model"):
        Servers().take("a", lambda _: python("print('no such model'); raise SystemExit(7)"), tmp_path / "log")
