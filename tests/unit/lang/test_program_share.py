"""What a run tells the engine of itself: which requests are its own, what is left, and that it has ended."""

from __future__ import annotations

import time
from typing import Any

import pytest

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM
from trivium.base.errors import ProgramError
from trivium.lang import ScriptedBackend


@sgl.function
def branches(s: Any) -> None:
    s += "a" + sgl.gen("x", max_tokens=2)
    forks = s.fork(2)
    forks += "b" + sgl.gen("y", max_tokens=3)
    forks.join()
    s += sgl.gen("z", max_tokens=4)


def shares(backend: ScriptedBackend) -> list[Any]:
    assert None not in backend.programs
    return list(backend.programs)


def test_all_requests_of_a_run_have_its_id_and_it_ends_once() -> None:
    backend = ScriptedBackend(lambda _: "abcdef")
    branches.run(backend=backend).sync()
    ids = {share.program_id for share in shares(backend)}
    assert len(shares(backend)) == 4
    assert [*ids] == backend.ended
    branches.run(backend=backend).sync()
    assert len(set(backend.ended)) == 2


def test_what_is_left_is_told_when_nothing_can_be_appended_any_more() -> None:
    backend = ScriptedBackend(lambda _: "abcdef", delay_s=0.02)
    branches.run(backend=backend).sync()
    left = [share.remaining_tokens for share in shares(backend)]
    told = [each for each in left if each is not None]
    assert left[-1] == 0
    assert all(each <= 10 for each in told)
    assert sorted(told, reverse=True) == told


def test_a_run_that_fails_or_is_cancelled_has_ended() -> None:
    backend = ScriptedBackend(lambda _: "abcdef", delay_s=0.05)

    @sgl.function
    def fails(s: Any) -> None:
        s += "a" + sgl.gen("x", max_tokens=50)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails.run(backend=backend)
    assert len(backend.ended) == 1
    state = branches.run(backend=backend, stream=True)
    state.cancel()
    with pytest.raises(ProgramError):
        state["x"]
    end_s = time.monotonic() + 20
    while len(backend.ended) < 2 and time.monotonic() < end_s:  # the author's thread may still be forking
        time.sleep(0.005)
    assert len(set(backend.ended)) == 2


def test_in_process_a_run_is_an_open_program_until_it_ends() -> None:
    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1) as llm:
        seen: list[int] = []

        def look() -> str:
            loop: Any = llm.shared_loop._loop
            seen.append(len(loop._scheduler.programs))
            return "ok"

        @sgl.function
        def agent(s: Any) -> None:
            s += "hello" + sgl.gen("x", max_tokens=4)
            s += sgl.tool(look, into="seen")
            s += sgl.gen("y", max_tokens=4)

        state = agent.run(backend=llm)
        state.sync()
        loop: Any = llm.shared_loop._loop
        assert seen == [1]
        assert len(loop._scheduler.programs) == 0
        assert llm.shared_loop.call("check") == {"differences": []}
