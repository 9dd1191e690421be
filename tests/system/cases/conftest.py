"""Servers for the cases: one of the tiny model per module; each test ends with a check that it is alive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.tiny_server import TinyServer, tiny_server


@pytest.fixture(scope="module")
def running() -> Iterator[TinyServer]:
    with tiny_server() as server:
        yield server


@pytest.fixture
def server(running: TinyServer) -> Iterator[TinyServer]:
    yield running
    running.assert_alive()
