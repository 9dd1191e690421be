"""What programs are tried on: the tiny model in this process, and behind a server; both must do the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import trivium.lang as sgl
from support.grounds import ADMIN_KEY, LIMIT_S, Ground, wait_until
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from trivium import LLM


@pytest.fixture
def llm() -> Iterator[LLM]:
    """The model in this process; also what is to be expected of a server."""
    with LLM(str(tiny_model()), executor="reference", kv_cache_memory="1MiB", threads=1, seed=0) as own:
        yield own


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """The same model behind HTTP."""
    flags = ("--executor", "reference", "--kv-cache-memory", "1MiB", "--threads", "1",
             "--admin-key", ADMIN_KEY, "--served-model-name", "tiny")  # fmt: skip
    with ServerProcess(tiny_model(), *flags) as running:
        yield running


@pytest.fixture(scope="session")
def endpoint(server: ServerProcess) -> Iterator[sgl.RuntimeEndpoint]:
    """A backend of that server, with a key that may do everything."""
    made = sgl.RuntimeEndpoint(server.url, api_key=ADMIN_KEY)
    yield made
    made.close()


@pytest.fixture(params=["in_process", "endpoint"])
def ground(request: pytest.FixtureRequest, llm: LLM) -> Iterator[Ground]:
    """The default backend of the test; in the end nothing is left of its programs."""
    if request.param == "in_process":
        loop = llm.shared_loop
        backend: Any = llm
        made = Ground("in_process", lambda: loop.call("stats"), lambda: loop.call("check")["differences"])
    else:
        backend = request.getfixturevalue("endpoint")
        backend.flush_cache()
        url, headers = backend.base_url, {"authorization": f"Bearer {ADMIN_KEY}"}

        def check() -> Any:
            return httpx.get(f"{url}/v1/cache/check", headers=headers, timeout=LIMIT_S).json()["differences"]

        made = Ground("endpoint", lambda: backend.info["internal_states"][0], check)
    sgl.set_default_backend(backend)
    yield made
    wait_until(made.is_idle)
    assert made.differences() == []
    sgl.set_default_backend(None)
