"""What operators do with the prefix cache over HTTP: look, pin, unpin, flush; and what salts keep apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from support.case_checks import eventually
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model

ADMIN = {"Authorization": "Bearer admin-key"}
PROMPT = [5, *range(10, 73)]
"""Four pages."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ["--kv-cache-memory", "256KiB", "--threads", "1", "--served-model-name", "tiny", "--admin-key", "admin-key"]
    with ServerProcess(tiny_model(), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_cached(client: httpx.Client) -> None:
    for pin in state(client)["pins"]:
        unpin(client, pin["pin_id"])
    assert client.post("/v1/cache/flush", headers=ADMIN).json() == {"flushed": True}


def state(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/v1/cache", headers=ADMIN)
    assert response.status_code == 200, response.text
    return dict(response.json())


def pin(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/cache/pin", headers=ADMIN, json=fields)


def unpin(client: httpx.Client, pin_id: str) -> httpx.Response:
    return client.post("/v1/cache/unpin", headers=ADMIN, json={"pin_id": pin_id})


def cached(client: httpx.Client, prompt: object, **fields: Any) -> int:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
    answer = client.post("/v1/completions", json=body).json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_pinned_prompt_is_computed_once_and_survives_flush(client: httpx.Client) -> None:
    made = pin(client, prompt=PROMPT).json()
    assert (made["prompt_tokens"], made["pinned_tokens"]) == (64, 64)
    client.post("/v1/cache/flush", headers=ADMIN)
    now = state(client)
    assert (now["tokens"], now["pages"]["pinned"], now["pages"]["evictable"]) == (64, 4, 0)
    assert now["pins"] == [{"pin_id": made["pin_id"], "tokens": 64, "expires_in_s": None}]
    assert cached(client, [*PROMPT, 9]) == 64
    assert unpin(client, made["pin_id"]).json() == {"pin_id": made["pin_id"], "unpinned": True}
    client.post("/v1/cache/flush", headers=ADMIN)
    assert (state(client)["tokens"], cached(client, [*PROMPT, 9])) == (0, 0)


def test_texts_and_salts_are_pinned_as_requests_find_them(client: httpx.Client) -> None:
    text = "a text of some pages " * 6
    made = pin(client, prompt=text, cache_salt="mine", model="tiny", ttl_s=60).json()
    client.post("/v1/cache/flush", headers=ADMIN)
    assert 0 < state(client)["pins"][0]["expires_in_s"] <= 60
    assert cached(client, text) == 0
    assert cached(client, text, cache_salt="other") == 0
    assert cached(client, text, cache_salt="mine") >= made["pinned_tokens"] - 1


def test_salts_are_namespaces_of_their_own_and_not_told(client: httpx.Client) -> None:
    for salt in ("SECRET-SALT", "other"):
        assert cached(client, PROMPT, cache_salt=salt) == 0
        assert cached(client, PROMPT, cache_salt=salt) == 63
    now = state(client)
    assert [each["tokens"] >= 64 for each in now["namespaces"]] == [True, True]
    assert "SECRET" not in str(now)


def test_too_much_is_refused_with_the_numbers(client: httpx.Client) -> None:
    total = state(client)["pages"]["total"]
    length = total // 4 * 16 + 16
    assert pin(client, prompt=[7] * length).status_code == 200
    refused = pin(client, prompt=[8] * length)
    assert refused.status_code == 503, refused.text
    assert int(refused.headers["retry-after"]) > 0
    message = refused.json()["error"]["message"]
    assert f"{total // 4 + 1} are; at most {total // 2} of {total} pages may be" in message
    assert len(state(client)["pins"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 2, 3]}, "prompt"),
        ({"prompt": "a", "messages": []}, "prompt"),
        ({"prompt": PROMPT, "ttl_s": 0}, "ttl_s"),
        ({"prompt": PROMPT, "max_tokens": 1}, "max_tokens"),
        ({"prompt": PROMPT, "model": "large"}, "model"),
        ({"prompt": PROMPT, "cache_salt": ""}, "cache_salt"),
    ],
)
def test_bad_pins_are_refused_by_name(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused = pin(client, **fields)
    assert refused.status_code in {400, 404}, refused.text
    assert refused.json()["error"]["param"] == param


def test_an_unknown_pin_is_a_404(client: httpx.Client) -> None:
    missing = unpin(client, "pin-x")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "pin_not_found")


def test_all_of_it_wants_the_admin_key(client: httpx.Client) -> None:
    calls = [("GET", ""), ("GET", "/check"), ("POST", "/pin"), ("POST", "/unpin"), ("POST", "/flush")]
    assert {client.request(method, f"/v1/cache{path}").status_code for method, path in calls} == {401}


def test_the_books_balance_and_hits_are_counted(client: httpx.Client) -> None:
    before = state(client)
    cached(client, PROMPT)
    cached(client, PROMPT)
    now = state(client)
    assert now["hit_tokens"] - before["hit_tokens"] == 63
    assert now["queried_tokens"] - before["queried_tokens"] == 128
    pages = now["pages"]
    assert pages["total"] == pages["free"] + pages["used"] + pages["evictable"]
    assert 0 <= now["wasted_bytes"] <= now["reserved_bytes"]
    assert client.get("/v1/cache/check", headers=ADMIN).json() == {"differences": []}


def test_pins_outlive_the_engine(client: httpx.Client, server: ServerProcess) -> None:
    for_good, for_a_while = (pin(client, prompt=PROMPT, ttl_s=ttl_s).json() for ttl_s in (None, 600))
    gone = pin(client, prompt=[9] * 32).json()
    unpin(client, gone["pin_id"])
    for _ in range(2):
        engine = next(each for each in psutil.Process(server.pid).children() if "trivium.assembly" in each.cmdline())
        engine.kill()
        engine.wait(10)
        eventually(lambda: client.get("/health").is_success, 20)
        eventually(lambda: len(state(client)["pins"]) == 2, 10)
        client.post("/v1/cache/flush", headers=ADMIN)
        pins = state(client)["pins"]
        assert [each["pin_id"] for each in pins] == [for_good["pin_id"], for_a_while["pin_id"]]
        assert pins[0]["expires_in_s"] is None
        assert 500 < pins[1]["expires_in_s"] < 600
        assert cached(client, [*PROMPT, 9]) == 64
    assert client.get("/v1/cache/check", headers=ADMIN).json() == {"differences": []}
