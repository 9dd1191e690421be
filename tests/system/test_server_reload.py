"""SIGHUP on a real server: what is reloaded acts at once, what needs a restart is named, a bad file changes nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.case_checks import eventually
from support.tiny_server import TinyServer, tiny_server
from trivium.server.reload import RELOADABLE

KEY, OTHER_KEY, ADMIN_KEY = "SENTINEL-KEY-ONE", "SENTINEL-KEY-TWO", "SENTINEL-KEY-ADMIN"


def as_bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def reload(server: TinyServer) -> list[str]:
    """Tell the server to read its options again; returns what it said of that."""
    before = len(server.log)
    server.tell(signal.SIGHUP)

    def has_answered() -> bool:
        return any("options read again" in line or "cannot be read again" in line for line in server.log[before:])

    eventually(has_answered, 10)
    server.client.get("/live")
    return server.log[before:]


def status_with(server: TinyServer, key: str, path: str = "/v1/models") -> int:
    return httpx.get(f"{server.client.base_url}".rstrip("/") + path, headers=as_bearer(key)).status_code


def statuses_of_twelve(server: TinyServer) -> set[int]:
    """Send twelve requests at once; on a busy machine they may come so late that none meets a full queue."""
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(server.complete, prompt=f"{i}", max_tokens=300, ignore_eos=True) for i in range(12)]
        return {future.result(timeout=30).status_code for future in asked}


def test_every_reloadable_option_is_tried_here() -> None:
    tried = {"api_key", "api_key_file", "admin_key", "cors_origin", "max_body_bytes", "keep_alive_s",
             "heartbeat_timeout_s", "drain_timeout_s", "log_level", "max_queue"}  # fmt: skip
    assert set(RELOADABLE) == tried


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Path]:
    """Write the configuration, and the key file that it names."""

    def write(*, keys: str = f"one={KEY}", **options: Any) -> Path:
        key_file = tmp_path / "keys"
        key_file.write_text(keys + "\n", encoding="utf-8")
        lines = [f"api_key_file: {key_file}", *(f"{name}: {value}" for name, value in options.items())]
        (tmp_path / "trivium.yaml").write_text("\n".join(lines), encoding="utf-8")
        return tmp_path / "trivium.yaml"

    return write


def test_reloaded_options_act_and_others_are_named(files: Callable[..., Path]) -> None:
    config = files(max_num_seqs=4)
    with tiny_server("--config", str(config), key=KEY) as server:
        assert (status_with(server, KEY), status_with(server, OTHER_KEY)) == (200, 401)
        files(
            keys=f"two={OTHER_KEY}",
            admin_key=f"[boss={ADMIN_KEY}]",
            api_key=f"[one={KEY}]",
            cors_origin="[https://example.org]",
            max_body_bytes=1024,
            max_queue=1,
            log_level="debug",
            max_num_seqs=5,
            keep_alive_s=0.1,
        )
        said = reload(server)

        assert (status_with(server, KEY), status_with(server, OTHER_KEY)) == (200, 200)
        assert status_with(server, ADMIN_KEY, "/v1/cache/check") == 200
        asked = httpx.options(f"{server.client.base_url}/v1/models", headers={
            "origin": "https://example.org", "access-control-request-method": "GET"})  # fmt: skip
        assert asked.headers["access-control-allow-origin"] == "https://example.org"
        assert server.complete(prompt="x" * 2000).status_code == 413
        assert server.client.get("/health").is_success  # logged at debug level only
        eventually(lambda: any("DEBUG" in line for line in server.log))
        assert any("max_num_seqs changed in the configuration and needs a restart" in line for line in said)
        assert not [line for line in said if "max_queue changed in the configuration and needs" in line]
        assert not [line for line in server.log if "SENTINEL" in line]
        eventually(lambda: statuses_of_twelve(server) == {200, 503})  # four seats, and one may wait
        kept = server.complete(prompt="slow", max_tokens=400, ignore_eos=True, n=3, stream=True)
        assert kept.status_code == 200

        server.engine.kill()  # the next engine is told too
        eventually(lambda: server.client.get("/health").is_success, 20)
        eventually(lambda: statuses_of_twelve(server) == {200, 503})

        files(keys=f"two={OTHER_KEY}", max_num_seqs=5, drain_timeout_s=0.1, heartbeat_timeout_s=3)
        assert server.client.post("/v1/config/reload").status_code == 401
        changes = server.client.post("/v1/config/reload", headers=as_bearer(ADMIN_KEY)).json()
        assert changes["needs_restart"] == ["max_num_seqs"]
        assert {"max_queue", "admin_key", "drain_timeout_s"} <= set(changes["changed"])
        assert (status_with(server, KEY), status_with(server, OTHER_KEY)) == (401, 200)
        assert status_with(server, ADMIN_KEY, "/v1/cache/check") in {401, 403}
        server.client.headers.update(as_bearer(OTHER_KEY))
        with ThreadPoolExecutor(1) as pool:  # it runs, so that it is not handed back, for much longer than it gets
            asked_again = pool.submit(server.complete, max_tokens=480, ignore_eos=True, n=100)
            eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
            server.tell(signal.SIGTERM)
            ended = asked_again.result(timeout=20)
        assert (ended.status_code, ended.json()["error"]["code"]) == (503, "shutting_down")
        assert "time is up" in ended.json()["error"]["message"]
        assert server.wait() == 0


def test_reloaded_times_act(files: Callable[..., Path]) -> None:
    """A silent stream is kept alive as often as is said by now, and a frozen engine found as soon."""
    config = files(admin_key=f"[boss={ADMIN_KEY}]", keep_alive_s=600, heartbeat_timeout_s=600)
    with tiny_server("--config", str(config), "--kv-events", key=KEY) as server:
        files(admin_key=f"[boss={ADMIN_KEY}]", keep_alive_s=0.1, heartbeat_timeout_s=1.5)
        assert any("changed: keep_alive_s, heartbeat_timeout_s" in line for line in reload(server))
        silent = server.client.stream("GET", "/v1/cache/events", headers=as_bearer(ADMIN_KEY), params={"since": 0})
        with silent as answer:
            comments = (line for line in answer.iter_lines() if line.startswith(":"))
            assert next(comments) == next(comments)

        frozen = server.engine
        frozen.send_signal(signal.SIGSTOP)
        eventually(lambda: not server.client.get("/health").is_success, 15)
        eventually(lambda: server.client.get("/health").is_success, 30)  # another engine is there
        assert not frozen.is_running()
        server.assert_alive()


def test_a_bad_file_changes_nothing_and_is_named(files: Callable[..., Path]) -> None:
    config = files()
    with tiny_server("--config", str(config), key=KEY) as server:
        for options, reason in (
            ({"keys": "", "max_body_bytes": 1024}, "holds no keys"),
            ({"max_body_bytes": "many"}, "max_body_bytes"),
            ({"no_such_option": 1, "max_body_bytes": 1024}, "no_such_option"),
            ({"api_key": "[short]", "max_body_bytes": 1024}, "fewer than 8"),
        ):
            files(**options)
            said = reload(server)
            assert any("cannot be read again" in line and reason in line for line in said), (reason, said)
            assert status_with(server, KEY) == 200
            assert server.complete(prompt="hi", max_tokens=1).status_code == 200
        files(admin_key=f"[boss={ADMIN_KEY}]")
        reload(server)
        config.unlink()
        refused = server.client.post("/v1/config/reload", headers=as_bearer(ADMIN_KEY))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "config_error")
        assert any("cannot read the configuration file" in line for line in reload(server))
        server.assert_alive()
