"""The engine in a process of its own: it answers, dies, comes back, drains, and says why it cannot start.

On the executor that users get, over a model so deep that an endless answer takes seconds and can be stopped in the
middle.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.tiny_engine import deep_model, run_alone, tiny_loop
from trivium.api import Answers
from trivium.assembly import engine_client
from trivium.base.errors import CapacityError, CheckpointError, EngineDeadError, InvalidParameterError
from trivium.config.options import EngineOptions
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.engine.client import EngineClient, engine_pid
from trivium.kernels import native

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(n=16, temperature=0.0, max_tokens=490, ignore_eos=True)
PROMPT = [40, 41, 42]
ENGINE = {"model": str(deep_model()), "kv_cache_memory": "64MiB", "threads": 1}


def _options(**changes: object) -> EngineOptions:
    return options_from({**ENGINE, **changes})


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    engine = engine_client(_options(), heartbeat_timeout_s=1.5)
    await engine.start()
    await engine.wait_ready()
    yield engine
    await engine.close()


async def _answer(engine: EngineClient, params: SamplingParams = GREEDY, name: str | None = None) -> Answers:
    answers = Answers("x", PROMPT, PROMPT, params)
    async for news in engine.submit(PROMPT, params, request_id=name):
        answers.add(news)
    return answers


async def _begin(engine: EngineClient, params: SamplingParams) -> asyncio.Task[Answers]:
    """Submit a request and return, when its first token is there, the task that reads the rest."""
    has_begun = asyncio.Event()
    answers = Answers("x", PROMPT, PROMPT, params)

    async def read() -> Answers:
        async for news in engine.submit(PROMPT, params):
            answers.add(news)
            if news.token_ids:
                has_begun.set()
        return answers

    reading = asyncio.create_task(read())
    await asyncio.wait_for(has_begun.wait(), 20)
    return reading


async def test_the_process_answers_as_the_loop_does(client: EngineClient) -> None:
    outputs = await asyncio.gather(*(_answer(client, replace(GREEDY, n=2, logprobs=1)) for _ in range(5)))

    expected = run_alone(tiny_loop(**ENGINE), PROMPT, replace(GREEDY, n=2, logprobs=1))
    for answers in outputs:
        assert answers.output.outputs == expected.outputs
    assert client.status().is_ready
    assert client.status().heartbeat_age_s < 1.5
    assert client.status().info["max_model_len"] == 512
    assert client.status().info["executor"] == ("native" if native.load() is not None else "reference")


async def test_a_refusal_arrives_as_the_error_it_was(client: EngineClient) -> None:
    with pytest.raises(InvalidParameterError, match="temperature is -1") as caught:
        await _answer(client, SamplingParams(temperature=-1.0))
    assert caught.value.param == "temperature"
    with pytest.raises(InvalidParameterError, match="outside the vocabulary"):
        async for _ in client.submit([5, 999_999], GREEDY):
            pass
    assert (await _answer(client)).output.finished


async def test_unseeded_requests_differ_and_seeded_ones_repeat(client: EngineClient) -> None:
    free = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    seeded = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=42)

    unseeded = {tuple((await _answer(client, free)).output.outputs[0].token_ids) for _ in range(4)}
    repeated = {tuple((await _answer(client, seeded)).output.outputs[0].token_ids) for _ in range(4)}

    assert len(unseeded) > 1
    assert len(repeated) == 1


async def test_leaving_a_stream_early_frees_the_request(client: EngineClient) -> None:
    stream = client.submit(PROMPT, ENDLESS)
    async for news in stream:
        if news.token_ids:
            break
    await stream.aclose()  # type: ignore[attr-defined]

    async with asyncio.timeout(10):
        while (await client.call("stats"))["num_running"] != 0:
            await asyncio.sleep(0.02)
    assert (await client.call("check"))["differences"] == []


async def test_a_killed_engine_comes_back_and_open_requests_go_on(client: EngineClient) -> None:
    before = (await _answer(client)).output.outputs
    open_request = await _begin(client, replace(ENDLESS, max_tokens=100))
    pid = engine_pid(client)
    assert pid is not None

    os.kill(pid, signal.SIGKILL)
    output = (await open_request).output

    assert client.status().epoch == 2
    assert (await _answer(client)).output.outputs == before
    assert output.outputs == run_alone(tiny_loop(**ENGINE), PROMPT, replace(ENDLESS, max_tokens=100)).outputs


async def test_draining_lets_open_requests_finish_and_takes_no_new_ones(client: EngineClient) -> None:
    long = replace(ENDLESS, n=4, max_tokens=300)
    open_request = await _begin(client, long)

    draining = asyncio.create_task(client.drain(timeout_s=30))
    await asyncio.sleep(0)
    with pytest.raises((CapacityError, EngineDeadError)):
        await _answer(client)

    assert await draining
    assert len((await open_request).output.outputs[0].token_ids) == 300


async def test_a_drain_that_takes_too_long_says_so_and_closing_ends_the_request(client: EngineClient) -> None:
    open_request = await _begin(client, ENDLESS)

    assert not await client.drain(timeout_s=0.05)
    await client.close()

    with pytest.raises(EngineDeadError, match="shutting down"):
        await open_request


async def test_a_checkpoint_that_cannot_be_read_is_the_error_of_the_start(tmp_path: Path) -> None:
    for file in deep_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    engine = engine_client(_options(model=str(tmp_path)))
    await engine.start()

    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        await engine.wait_ready()
    assert not engine.status().is_ready
    await engine.close()


async def test_the_engine_does_not_outlive_its_client() -> None:
    engine = engine_client(_options())
    await engine.start()
    await engine.wait_ready()
    pid = engine_pid(engine)
    assert pid is not None

    await engine.close()

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
