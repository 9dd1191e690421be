"""Nothing hangs: whatever fails, every reader is told at once, with the author's line; what was held is free."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import trivium.lang as sgl
from trivium.base.errors import DeadlineExceededError, InvalidParameterError, ProgramError
from trivium.lang import ProgramState, ScriptedBackend
from trivium.lang.expressions import ScopeBegin

LIMIT_S = 10
HERE = r"test_failures\.py:\d+"


def within_limit(action: Callable[[], Any]) -> Any:
    """Run an action in a thread, and fail rather than wait for ever."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(action).result(LIMIT_S)
    finally:
        pool.shutdown(wait=False)


def run(write: Callable[[Any], Any], backend: ScriptedBackend | None = None, **options: Any) -> ProgramState:
    def program(s: Any) -> Any:
        return write(s)

    made: ProgramState = within_limit(
        lambda: sgl.function(program).run(backend=backend or ScriptedBackend(lambda _: "x"), **options)
    )
    return made


def assert_lost(read: Callable[[], Any], match: str) -> ProgramError:
    with pytest.raises(ProgramError, match=match) as caught:
        within_limit(read)
    return caught.value


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def failing(s: Any) -> None:
    s += "a" + sgl.gen("before") + sgl.gen("broken") + sgl.gen("after")


def test_a_failed_primitive_reaches_every_reader_and_cites_its_line() -> None:
    state = run(failing, ScriptedBackend(["fine"]))
    assert state["before"] == "fine"
    for read in (
        lambda: state["broken"],
        lambda: state["after"],
        lambda: state.get_meta_info("after"),
        state.text,
        state.messages,
        state.sync,
        lambda: list(state.text_iter("after")),
        lambda: list(state.text_iter()),
    ):
        error = assert_lost(read, rf"{HERE}: gen 'broken' failed: the script has no answer")
        assert isinstance(error.__cause__, InvalidParameterError)
    assert state.error() is state.failure


async def test_async_readers_are_told_too() -> None:
    async with asyncio.timeout(LIMIT_S):
        state = await sgl.function(failing_async).run_async(backend=ScriptedBackend())
        for read in (state.get_var_async("x"), state.text_async(), state.sync_async()):
            with pytest.raises(ProgramError, match=HERE):
                await read
        with pytest.raises(ProgramError, match=HERE):
            _ = [piece async for piece in state.text_async_iter()]


async def failing_async(s: Any) -> None:
    s += sgl.gen("x")


def test_a_variable_that_nothing_sets_is_no_wait() -> None:
    with pytest.raises(KeyError, match="nothing sets the variable 'y'; known are x"):
        within_limit(lambda: run(lambda s: s.append(sgl.gen("x")))["y"])


def test_a_failed_state_fails_its_forks_and_what_joins_them() -> None:
    forks: list[Any] = []

    def program(s: Any) -> None:
        s += sgl.gen("broken")
        forks.extend(s.fork(2))
        for fork in forks:
            fork.append(sgl.gen("x"))

    state = run(program, ScriptedBackend())
    for own in (state, *forks):
        assert_lost(own.text, "gen 'broken' failed")
    assert_lost(lambda: forks[0]["x"], "gen 'broken' failed")


@pytest.mark.parametrize("mode", ["gather_variable", "concate_and_append"])
def test_a_failed_fork_fails_what_joins_it(mode: str) -> None:
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += [sgl.gen("x"), sgl.gen("x") + sgl.gen("y")]
        forks.join(mode)
        s += "more"

    state = run(program, ScriptedBackend(["a", "b"]))
    assert_lost(state.text, f"{HERE}: gen 'y' failed")
    if mode == "gather_variable":
        assert_lost(lambda: state["x"], f"{HERE}: gen 'y' failed")


def test_a_scope_that_never_ends_is_lost_when_the_program_ends() -> None:
    state = run(_open_scope)
    assert_lost(lambda: state["open"], "the scope 'open' was never ended")


def _open_scope(s: Any) -> None:
    s += ScopeBegin(name="open")


def test_a_gen_has_a_time_limit() -> None:
    backend = ScriptedBackend(lambda _: "x" * 1000, delay_s=0.05)
    state = run(lambda s: s.append(sgl.gen("x", timeout=0.05, max_tokens=1000)), backend)
    error = assert_lost(lambda: state["x"], f"{HERE}: gen 'x' failed: it took longer than")
    assert isinstance(error.__cause__, DeadlineExceededError)
    wait_until(lambda: backend.num_open == 0)


def test_a_program_has_a_time_limit() -> None:
    def program(s: Any) -> None:
        for _ in range(1000):
            s += sgl.gen("x")

    backend = ScriptedBackend(lambda _: "x", delay_s=0.01)
    state = run(program, backend, timeout=0.1)
    assert_lost(lambda: state["x"], "it took longer than")
    wait_until(lambda: backend.num_open == 0)


def test_a_cancelled_program_frees_everything() -> None:
    backend = ScriptedBackend(lambda _: "x" * 1000, delay_s=0.05)

    def program(s: Any) -> None:
        forks = s.fork(3)
        forks += sgl.gen("x", max_tokens=1000)
        forks.join()

    state = run(program, backend)
    wait_until(lambda: backend.num_open == 3)
    state.cancel()
    assert_lost(lambda: state["x"], "cancelled")
    wait_until(lambda: backend.num_open == 0)


def test_an_exception_in_the_function_ends_its_program() -> None:
    backend = ScriptedBackend(lambda _: "x" * 1000, delay_s=0.05)

    def program(s: Any) -> None:
        s += sgl.gen("x", max_tokens=1000)
        raise LookupError("author's own")

    with pytest.raises(LookupError):
        run(program, backend)
    wait_until(lambda: backend.num_open == 0)
    state = run(program, backend, stream=True)
    assert_lost(lambda: list(state.text_iter()), f"{HERE}: the program's function failed: LookupError")
    assert_lost(lambda: state["x"], "LookupError")
    wait_until(lambda: backend.num_open == 0)


async def test_cancelling_the_task_cancels_the_program() -> None:
    backend = ScriptedBackend(lambda _: "x" * 1000, delay_s=0.05)

    async def program(s: Any) -> None:
        s += sgl.gen("x", max_tokens=1000)
        await s.get_var_async("x")

    task = asyncio.create_task(sgl.function(program).run_async(backend=backend))
    while not backend.num_open:
        await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while backend.num_open:
        await asyncio.sleep(0.002)


def test_a_failing_tool_cites_its_line() -> None:
    def broken() -> None:
        raise ValueError("no")

    state = run(lambda s: s.append(sgl.tool(broken)))
    assert_lost(lambda: state["broken"], f"{HERE}: toolcall 'broken' failed: no")
    state = run(lambda s: s.append(sgl.tool("unknown")))
    assert_lost(lambda: state["unknown"], "there is no tool 'unknown'; known are none")


def test_a_tool_that_waits_for_what_comes_after_it_fails() -> None:
    def program(s: Any) -> None:
        began = threading.Event()

        def later() -> Any:
            began.wait(LIMIT_S)
            return s["x"]

        async def blocking() -> Any:
            return s["z"]

        s += sgl.tool(later)
        s += sgl.gen("x")
        began.set()
        fork = s.fork()
        fork[0] += sgl.tool(blocking) + sgl.gen("z")

    state = run(program)
    assert_lost(lambda: state["x"], "a tool waits for what comes after itself")


def test_a_coroutine_tool_may_not_block() -> None:
    def program(s: Any) -> None:
        other = s.fork()[0]

        async def blocking() -> Any:
            return other["z"]

        s += sgl.tool(blocking)
        other += sgl.gen("z", max_tokens=1000)

    state = run(program, ScriptedBackend(lambda _: "x" * 1000, delay_s=0.01))
    assert_lost(lambda: state["blocking"], "must not block|nothing sets")
    state.cancel()


def test_tools_that_wait_for_tools_leave_them_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.lang.tools.MAX_TOOLS", 2)
    monkeypatch.setattr("trivium.lang.tools._room", [])

    def inner() -> int:
        return 1

    def outer() -> int:
        state = run(lambda s: s.append(sgl.tool(inner)))
        found: int = state["inner"]
        return found

    def program(s: Any) -> None:
        forks = s.fork(8)
        forks += sgl.tool(outer)
        forks.join()

    assert within_limit(lambda: run(program)["outer"]) == [1] * 8


def test_tools_that_never_return_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.lang.tools.MAX_TOOLS", 2)
    monkeypatch.setattr("trivium.lang.tools._room", [])
    released = threading.Event()
    for _ in range(3):
        state = run(lambda s: s.append(sgl.tool(released.wait, into="x", timeout=0.02)))
        assert_lost(lambda state=state: state["x"], "it took longer than")  # type: ignore[misc]
    assert within_limit(lambda: run(lambda s: s.append(sgl.tool(lambda: 1, into="y")))["y"]) == 1
    released.set()


def test_roles_do_not_nest_and_end_in_order() -> None:
    state = run(lambda s: s.append(sgl.user(sgl.assistant("x"))))
    assert_lost(state.text, "assistant begins inside user")
    state = run(lambda s: s.append(sgl.user_end()))
    assert_lost(state.text, "user ends, but no role has begun")


def test_a_program_that_has_ended_takes_nothing_more() -> None:
    state = run(lambda s: s.append("x"))
    with pytest.raises(InvalidParameterError, match="has ended"):
        state += "y"
    with pytest.raises(TypeError, match="int cannot be appended"):
        run(lambda s: s.append(5))
    assert state.text() == "x"


def test_hundreds_of_states_need_no_thread_each() -> None:
    backend = ScriptedBackend(lambda _: "abc", delay_s=0.002)
    before = threading.active_count()

    def program(s: Any) -> int:
        forks = s.fork(500)
        forks += sgl.gen("x")
        forks.join()
        s.sync()
        return threading.active_count()

    state = run(program, backend)
    assert len(state["x"]) == 500
    assert state.ret_value - before < 5
