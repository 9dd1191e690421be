"""Programs on models of this process: their event loop is woken seldom, and an `AsyncLLM` runs them too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trivium.lang as sgl
from support.tiny_engine import tiny_model
from trivium import LLM, AsyncLLM, SamplingParams
from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.backends import pump
from trivium.lang.driver import driver


def test_the_event_loop_wakes_once_per_step_however_many_answers_grow(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(s: Any, idx: int) -> None:
        s += f"hello {idx}" + sgl.gen("x")

    run = sgl.function(write).run_batch
    run([{"idx": 0}], max_new_tokens=1, backend=llm)
    wakes: list[Any] = []
    loop = driver._begun()
    plainly = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda action, *args: wakes.append(action) or plainly(action, *args)
    )
    turns: list[Any] = []
    read = llm.shared_loop.read
    monkeypatch.setattr(llm.shared_loop, "read", lambda inbox: turns.append(inbox) or read(inbox))
    run([{"idx": idx} for idx in range(8)], max_new_tokens=24, ignore_eos=True, backend=llm)
    news = [action for action in wakes if action is pump._tell_all]
    assert 24 <= len(news) <= len(turns)  # a turn of the pump runs one step


async def test_an_async_model_runs_programs_beside_its_own_answers() -> None:
    def write(s: Any, first: str) -> None:
        s += first + sgl.gen("x", regex="[a-z ]+") + sgl.select("y", ["yes", "no"])
        forks = s.fork(2)
        forks += sgl.gen("z", regex="[a-z ]+")
        forks.join()

    program, greedy = sgl.function(write), {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
    options: Any = {"kv_cache_memory": "1MiB", "threads": 1, "seed": 0}
    with LLM(str(tiny_model()), **options) as own:
        expected = program.run("hello", backend=own, **greedy)
        names = ("x", "y", "z")
        values = [expected[name] for name in names]
    asynchronous = AsyncLLM(str(tiny_model()), **options)
    with pytest.raises(InvalidParameterError, match="not started"):
        program.run("hello", backend=asynchronous)
    async with asynchronous:
        own_answer = asyncio.ensure_future(_text_of(asynchronous))
        state = await program.run_async("hello", backend=asynchronous, **greedy)
        assert [await state.get_var_async(name) for name in names] == values
        blocking = program.run("hello", backend=asynchronous, **greedy)  # in the loop's own thread, which then waits
        assert [blocking[name] for name in names] == values
        assert len(await own_answer) == 6
        sgl.flush_cache(asynchronous)
        assert sgl.get_server_info(asynchronous)["model"]
        state = program.run("hello", backend=asynchronous, max_new_tokens=400)
        state.cancel()
        endless = program.run("hello", backend=asynchronous, max_new_tokens=400, ignore_eos=True)
    with pytest.raises(ProgramError):
        await endless.sync_async()


async def _text_of(llm: AsyncLLM) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return [token async for news in llm.generate("hello", params) for token in news.token_ids]
