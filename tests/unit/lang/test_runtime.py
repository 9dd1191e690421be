"""A server of one's own: started, used, ended; and what it says when it cannot start."""

from __future__ import annotations

import os
from typing import Any

import pytest

import trivium.lang as sgl
from support.grounds import wait_until
from support.tiny_engine import tiny_model
from trivium import LLM
from trivium.base.errors import AuthenticationError, ConfigError, EngineDeadError

OPTIONS: dict[str, Any] = {"kv_cache_memory": "1MiB", "threads": 1}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_programs_run_on_a_server_of_their_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def own(s: Any) -> None:
        s += "hello" + sgl.gen("x", temperature=0.0, max_tokens=8)

    monkeypatch.setenv("TRIVIUM_MAX_MODEL_LEN", "64")  # what is given goes first
    with sgl.Runtime(
        model_path=str(tiny_model()), context_length=100, random_seed=3, api_key="ann=ann-long-key", **OPTIONS
    ) as runtime:
        assert sgl.function(own).run(backend=runtime)["x"] == sgl.function(own).run(backend=llm)["x"]
        assert runtime.get_server_info()["max_model_len"] == 100
        runtime.flush_cache()
        with pytest.raises(AuthenticationError):
            sgl.RuntimeEndpoint(runtime.url)
        assert is_alive(runtime.pid)
    wait_until(lambda: not is_alive(runtime.pid))


def test_a_forgotten_one_is_ended() -> None:
    runtime = sgl.Runtime(model_path=str(tiny_model()), **OPTIONS)
    pid = runtime.pid
    del runtime
    wait_until(lambda: not is_alive(pid))


def test_what_no_server_takes_is_refused_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="max_num_seq"):
        sgl.Runtime(model_path="x", max_num_seq=3)
    with pytest.raises(ConfigError, match="same option"):
        sgl.Runtime(model_path="x", model="y")
    with pytest.raises(ConfigError, match="tp_size"):
        sgl.Runtime(model_path="x", tp_size=2)


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(EngineDeadError, match="no-such-model"):
        sgl.Runtime(model_path="/no-such-model", offline=True, **OPTIONS)
    with pytest.raises(EngineDeadError, match="not ready within 0"):
        sgl.Runtime(model_path=str(tiny_model()), launch_timeout=0.01, **OPTIONS)
