"""Servers that are started for a turn, and ended or frozen after it, so that no idle engine disturbs another's turn."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.engines.engine import Program
from benchmarks.peers.machine import Process, process_tree, processes, raise_weight
from benchmarks.peers.workdir import tail

_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.1
Command = Callable[[int], Program]
"""The program of a server on a port."""


class ServerFailedError(Exception):
    """A server ended, or did not answer in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs, or is frozen."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def freeze(self) -> None:
        """Stop its processes where they are; their memory stays."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it: politely, then at once."""
        members = process_tree(self.process.pid)
        self.process.send_signal(signal.SIGTERM)
        self.thaw()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_LIMIT_S)
        _kill_those_left(members)
        self.process.wait()

    def processor_s(self) -> float:
        """Return the processor seconds it has used."""
        return sum(member.processor_s for member in process_tree(self.process.pid).values())

    def _signal(self, number: signal.Signals) -> None:
        for pid in process_tree(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _kill_those_left(members: Mapping[int, Process]) -> None:
    """End children that outlived their server, which they no longer descend from, and wait until they are gone."""
    give_up_s = time.perf_counter() + _STOP_LIMIT_S
    while time.perf_counter() < give_up_s:
        everything = processes()
        left = [pid for pid, one in members.items() if pid in everything and everything[pid].is_same_as(one)]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


class Servers:
    """Those that are frozen between turns, by the name of what they serve."""

    def __init__(self) -> None:
        self._frozen: dict[str, Server] = {}

    def take(self, key: str, command: Command, log: Path) -> tuple[Server, float | None]:
        """Return a server that answers, thawed or started, and how long a start took to the first token.

        Raises:
            ServerFailedError: It does not start.
        """
        held = self._frozen.pop(key, None)
        if held is not None:
            held.thaw()
            return held, None
        return start(command, log)

    def give_back(self, key: str, server: Server, *, keep: bool) -> None:
        """Freeze or end a server."""
        if keep:
            server.freeze()
            self._frozen[key] = server
        else:
            server.end()

    def close(self) -> None:
        """End all."""
        while self._frozen:
            self._frozen.popitem()[1].end()


def start(command: Command, log: Path) -> tuple[Server, float]:
    """Start a server and wait for its first token; returns it and the seconds that took.

    Raises:
        ServerFailedError: It ended or did not answer in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = command(port)
    began_s = time.perf_counter()
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603
            program.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, **program.environ},
        )
    server = Server(process, f"http://127.0.0.1:{port}", log)
    try:
        raise_weight(process.pid)
        _wait_for_token(server)
        raise_weight(process.pid)  # processes and threads that came since
    except BaseException:
        server.end()
        raise
    return server, time.perf_counter() - began_s


def _wait_for_token(server: Server) -> None:
    give_up_s = time.perf_counter() + _START_LIMIT_S
    while time.perf_counter() < give_up_s:
        if server.process.poll() is not None:
            code = server.process.returncode
            raise ServerFailedError(f"the server ended with {code}; {server.log} ends:\n{_end_of(server.log)}")
        with suppress(urllib.error.URLError, OSError, LookupError, ValueError):
            with urllib.request.urlopen(f"{server.url}/v1/models", timeout=_START_LIMIT_S) as response:  # noqa: S310
                model = json.load(response)["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)  # noqa: S310
            with urllib.request.urlopen(request, timeout=_START_LIMIT_S) as response:  # noqa: S310
                if json.load(response)["choices"]:
                    return
        time.sleep(_POLL_S)
    raise ServerFailedError(f"no token after {_START_LIMIT_S:g} s; {server.log} ends:\n{_end_of(server.log)}")


def _end_of(log: Path) -> str:
    return tail(log.read_bytes().decode(errors="replace"))
