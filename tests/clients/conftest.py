"""A real server over the tiny model, and what plain HTTP gets from it, which every client must get too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess, smollm2_or_skip
from support.spoken import MODEL, Spoken
from support.tiny_engine import tiny_model

KEY = "a-key-of-the-tests"


@pytest.fixture(scope="session")
def spoken() -> Iterator[Spoken]:
    """The tiny model, behind a key."""
    flags = ("--served-model-name", MODEL, "--kv-cache-memory", "1MiB", "--threads", "1", "--api-key", f"tests={KEY}")
    headers = {"authorization": f"Bearer {KEY}"}
    with ServerProcess(tiny_model(), *flags) as running, httpx.Client(headers=headers, timeout=20) as plain:
        yield Spoken(running.url, KEY, plain)


@pytest.fixture(scope="session")
def smollm2() -> Iterator[Spoken]:
    """A model that knows something."""
    with ServerProcess(smollm2_or_skip()) as running, httpx.Client(timeout=60) as plain:
        yield Spoken(running.url, "none", plain)


@pytest.fixture
def question() -> Sequence[dict[str, Any]]:
    """Messages that the small model answers well."""
    return [{"role": "user", "content": "What is the capital of France?"}]
