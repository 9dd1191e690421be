"""Keys, secrets and prompts of a real server (cases I03 I04 I05)."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from support.case_checks import eventually
from support.server_site import open_site
from support.tiny_server import TinyServer, tiny_server
from trivium.server.auth import OPEN_PATHS

EXECUTOR = "reference"
"""Answers of the tiny model must last long enough to be stopped midway."""
KEY, ADMIN_KEY, HUB_TOKEN = "SENTINEL-caller-key-1", "SENTINEL-admin-key-2", "SENTINEL-hub-token-3"
PROMPT = "SENTINEL prompt four"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    names = {"TMPDIR": "tmp", "TRIVIUM_CACHE_DIR": "cache", "XDG_CACHE_HOME": "xdg", "HF_HOME": "hub"}
    return {name: str(tmp_path_factory.mktemp(folder)) for name, folder in names.items()}


@pytest.fixture(scope="module")
def running(folders: dict[str, str]) -> Iterator[TinyServer]:
    flags = ("--api-key", f"tests={KEY}", "--admin-key", f"root={ADMIN_KEY}")
    with tiny_server(*flags, key=KEY, environ={**folders, "HF_TOKEN": HUB_TOKEN}) as server:
        yield server


@pytest.fixture
def stranger(server: TinyServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.client.base_url) as client:
        yield client


def registered() -> list[tuple[str, str]]:
    """Every route of the application, as (method, path)."""
    site = open_site()
    asyncio.run(site.client.aclose())
    routes = [route for route in site.app.routes if isinstance(route, Route)]
    assert len(routes) == len(site.app.routes)
    return [(method, route.path) for route in routes for method in sorted(route.methods or {"POST"})]


def test_i04_every_registered_route_wants_a_key_but_the_open_list(stranger: httpx.Client) -> None:
    walked = registered()
    assert {path for _, path in walked} > {"/v1/completions", "/metrics", "/openapi.json", "/v1/cache/flush"}
    for method, path in walked:
        status = stranger.request(method, path.replace("{model_id:path}", "tiny")).status_code
        assert status == (200 if path in OPEN_PATHS else 401), path


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/V1/models", "/v1/models/", "/v1//models", "/v1/./models", "/health/", "/health/../v1/models",
     "/HEALTH", "/live%2f", "/v1/models?health", "/v1/models%00", "/nope", "/docs", "/redoc", "/"],
)  # fmt: skip
def test_i04_no_spelling_of_a_path_gets_around_the_key(stranger: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
        assert stranger.request(method, path).status_code == 401


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", KEY.encode(), b"Basic " + KEY.encode(), b"Bearer " + KEY[:-1].encode(), b"Bearer \xff\xfe",
     b"Bearer " + KEY.encode() + b"x", b"Bearer " + KEY.lower().encode(), "Bearer schlüssel".encode(),
     b"Bearer " + ADMIN_KEY.encode(), b"Bearer tests=" + KEY.encode()],
)  # fmt: skip
def test_i04_a_wrong_key_is_a_401_whatever_its_bytes(stranger: httpx.Client, header: bytes) -> None:
    response = stranger.get("/v1/models", headers={"authorization": header})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_i04_admin_routes_want_an_admin_key(server: TinyServer) -> None:
    assert server.client.post("/v1/cache/flush").status_code == 401
    as_admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    assert server.client.post("/v1/cache/flush", headers=as_admin).status_code == 200
    assert server.client.get("/v1/cache/check").status_code == 401
    assert server.client.get("/v1/cache/check", headers=as_admin).json() == {"differences": []}


def written_below(folders: dict[str, str]) -> list[Path]:
    return [path for folder in folders.values() for path in Path(folder).rglob("*") if path.is_file()]


def test_i05_secrets_and_prompts_are_in_no_log_answer_or_file(server: TinyServer, folders: dict[str, str]) -> None:
    answers = [
        server.complete(prompt=PROMPT, max_tokens=1),
        server.complete(prompt=PROMPT, max_tokens=10**6),
        server.complete(prompt=PROMPT, temperature=-1),
        server.complete(prompt=[PROMPT, 1]),
        server.complete(prompt=PROMPT, stop=[""]),
        server.post("/v1/chat/completions", messages=[{"role": PROMPT[:8].lower(), "content": PROMPT}]),
        server.chat(PROMPT, max_tokens=1),
        server.client.get(f"/v1/{KEY}"),
        server.client.get("/v1/models", headers={"authorization": f"Bearer {KEY}x"}),
    ]
    answers += [server.client.get(path) for path in ("/metrics", "/v1/models", "/version", "/health", "/openapi.json")]
    for answer in answers:
        assert "SENTINEL" not in answer.text
    assert len(server.log) > len(answers)
    assert not [line for line in server.log if "SENTINEL" in line]
    for path in written_below(folders):
        assert b"SENTINEL" not in path.read_bytes(), path


def test_i05_an_engine_that_dies_tells_no_secret_either(server: TinyServer) -> None:
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "n": 4, "stream": True}
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(server.complete(**fields).text))
    asking.start()
    eventually(lambda: server.metrics()["trivium_requests_running"] > 0)
    server.engine.kill()
    asking.join(20)
    assert "SENTINEL" not in answers[0]
    eventually(lambda: server.client.get("/health").is_success, 20)
    assert any("signal 9" in line for line in server.log)
    assert not [line for line in server.log if "SENTINEL" in line]


PARTS = ["image_url", "input_audio", "file", "video_url", "image"]


def test_i03_a_text_server_fetches_nothing(server: TinyServer) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        local = f"http://127.0.0.1:{listener.getsockname()[1]}/redirect"
        for url in (local, "http://169.254.169.254/latest", "file:///etc/passwd", "data:image/png;base64,AAAA"):
            for kind in PARTS:
                part = {"type": kind, kind: {"url": url, "data": url, "file_url": url}}
                messages = [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
                refused = server.post("/v1/chat/completions", messages=messages)
                assert refused.status_code == 400
                assert "messages[0].content[1]" in refused.json()["error"]["message"]
        with pytest.raises(TimeoutError):
            listener.accept()
