"""A server with a disk cache: its prefixes outlive an orderly end, and a killed engine leaves a usable directory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium.tiers.folder import is_in_use, list_segments

PROMPT = list(range(40, 140))


def ask(server: ServerProcess) -> tuple[str, int]:
    """Return the text and the number of cached tokens."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).raise_for_status().json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_prefixes_outlive_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    flags = ("--kv-cache-memory", "1MiB", "--disk-cache", f"{folder}:8MiB", "--served-model-name", "tiny")
    with ServerProcess(tiny_model(), *flags) as server:
        cold = ask(server)
        assert cold[1] == 0
        assert is_in_use(folder)
        assert 'trivium_tier_pages{tier="disk"}' in httpx.get(f"{server.url}/metrics").text
        server.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
        assert server.wait_end() == 0
    assert not is_in_use(folder)
    assert sum(segment.num_pages for segment in list_segments(folder)) >= 6
    with ServerProcess(tiny_model(), *flags) as server:
        assert ask(server) == (cold[0], 96)


def test_a_killed_engine_leaves_what_was_hot_to_the_next_one(tmp_path: Path) -> None:
    flags = ("--kv-cache-memory", "1MiB", "--disk-cache", f"{tmp_path / 'kv'}:8MiB", "--served-model-name", "tiny")
    with ServerProcess(tiny_model(), *flags) as server:
        cold = ask(server)
        assert ask(server) == (cold[0], 99)  # used twice: written as soon as nothing runs
        until(lambda: sum(segment.num_pages for segment in list_segments(tmp_path / "kv")) >= 6)
        engine = next(child for child in psutil.Process(server.pid).children() if "trivium.assembly" in child.cmdline())
        engine.kill()
        until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
        server.wait_ready()
        until(lambda: "trivium_engine_restarts_total 1.0" in httpx.get(f"{server.url}/metrics").text)
        server.wait_ready()
        assert ask(server) == (cold[0], 96)


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, at most 20 s."""
    end_s = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_second_server_on_the_directory_says_so_and_ends(tmp_path: Path) -> None:
    flags = ("--kv-cache-memory", "1MiB", "--disk-cache", f"{tmp_path / 'kv'}:8MiB")
    with ServerProcess(tiny_model(), *flags), ServerProcess(tiny_model(), *flags, wait=False) as second:
        assert second.wait_end() != 0
        assert "another process uses" in second.log()
