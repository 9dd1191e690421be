"""KV events of a real server: whoever follows them knows what is cached."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium.base.errors import ConfigError
from trivium.config.resolve import options_from

ADMIN = {"Authorization": "Bearer admin-key"}
PAGE_LEN = 16


@pytest.fixture(scope="module", params=[None, 24], ids=["full", "window"])
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    flags = ["--kv-cache-memory", "128KiB", "--threads", "1", "--served-model-name", "tiny", "--admin-key", "admin-key",
             "--kv-events"]  # fmt: skip
    with (
        ServerProcess(tiny_model(request.param), *flags) as running,
        httpx.Client(base_url=running.url, timeout=20) as client,
    ):
        yield client


def complete(client: httpx.Client, prompt: list[int], salt: str) -> None:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text


def records_until(client: httpx.Client, last_tokens: list[int], **params: int) -> list[dict[str, Any]]:
    """Read the stream up to the record that stores these tokens."""
    seen = []
    with client.stream("GET", "/v1/cache/events", headers=ADMIN, params=params) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1].get("token_ids") == last_tokens and seen[-1]["group"] == 0:
                    return seen
    raise AssertionError("the stream ended")


def test_a_follower_knows_what_is_cached(client: httpx.Client) -> None:
    rng = random.Random(7)  # noqa: S311  (a reproducible load)
    stems = [[rng.randrange(10, 200) for _ in range(4 * PAGE_LEN)] for _ in range(4)]
    for number in range(60):
        stem = rng.choice(stems)[: rng.randrange(5 * PAGE_LEN)]
        # Whole pages only: partial ones are not told of, and the server counts them.
        fill = -len(stem) % PAGE_LEN + PAGE_LEN * rng.randrange(1, 3)
        complete(client, stem + [rng.randrange(10, 200) for _ in range(fill)], f"SALT-{number % 2}")
    last = [number % 150 + 10 for number in range(PAGE_LEN)]
    complete(client, last, "SALT-last")
    state = client.get("/v1/cache", headers=ADMIN).json()
    seen = records_until(client, last)

    known: dict[tuple[int, str], str] = {}
    for record in seen:
        keys = [(record["group"], key) for key in record.get("page_keys", ())]
        if record["kind"] == "stored":
            assert len(record["token_ids"]) == len(keys) * record["page_len"]
            assert not known.keys() & set(keys)
            known.update(dict.fromkeys(keys, record["namespace"]))
        elif record["kind"] == "removed":
            assert [known.pop(key) for key in keys] == [record["namespace"]] * len(keys)
        else:
            assert (record["kind"], record["medium"], known) == ("cleared", "device", {})
    assert state["evicted_pages"] > 0
    assert "SALT" not in str(seen)
    assert len(known) == state["pages"]["cached"]
    assert Counter(known.values()) == {each["namespace"]: each["pages"] for each in state["namespaces"]}

    middle = seen[len(seen) // 2]["seq"]
    assert records_until(client, last, since=middle) == [record for record in seen if record["seq"] > middle]


def test_a_library_refuses_what_only_servers_tell() -> None:
    with pytest.raises(ConfigError, match="use trivium serve"):
        options_from({"kv_events": True})
