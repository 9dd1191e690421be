"""An engine that dies is not noticed in any answer: tokens, text, logprobs and ends are those of an undisturbed run.

On the executor that users get. What kills the engine is either the test, from outside, or a request, see
`support.dying_engine`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from support.dying_engine import command
from support.server_process import smollm2_or_skip
from support.tiny_engine import deep_model, run_alone, tiny_loop, tiny_model, without_ids
from trivium.api import Answers, RequestOutput
from trivium.assembly import engine_client
from trivium.assembly.process import pack_options
from trivium.base.errors import (
    CapacityError,
    DeadlineExceededError,
    EngineDeadError,
    PoisonRequestError,
    TriviumError,
)
from trivium.config.chat_output import ChatOutput, Tool
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams
from trivium.config.structured import StructuredOutputs
from trivium.engine.client import EngineClient, engine_pid
from trivium.engine.suspects import MOST_FUTILE

GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=1.0, seed=11)
SHORT = replace(SEEDED, max_tokens=12)
PROMPT = [40, 41, 42]
OPTIONS: dict[str, Any] = {"kv_cache_memory": "64MiB", "threads": 1}
TOOL = Tool(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]})
CHAT = ChatOutput(
    reasoning_dialect="qwen3",
    starts_in_reasoning=True,
    max_reasoning_tokens=25,
    tool_dialect="hermes",
    tools=(TOOL,),
    tool_choice="required",
)
KINDS: Mapping[str, SamplingParams] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "several": replace(SEEDED, n=3),
    "under a grammar": replace(SEEDED, n=2, structured_outputs=StructuredOutputs(regex="[a-p ]{40,60}")),
    "a chat": replace(SEEDED, n=2, max_tokens=90, chat_output=CHAT),
    "unequal ends": replace(SEEDED, n=6, ignore_eos=False, stop_token_ids=tuple(range(0, 256, 7))),
    "best": replace(SEEDED, n=1, best_of=3),
    "logprobs": replace(SEEDED, logprobs=3),
    "scored prompt": replace(GREEDY, prompt_logprobs=2, logprobs=1),
    "scored only": replace(GREEDY, prompt_logprobs=2, max_tokens=0),
    "stop text": replace(SEEDED, temperature=2.0, stop=("ab", "the", "zq", "e"), min_tokens=20),
    "penalties": replace(SEEDED, frequency_penalty=0.7, presence_penalty=0.3, repetition_penalty=1.2),
    "words": replace(SEEDED, bad_words=("a", "e"), logit_bias={65: 4.0}),
    "first tokens": replace(SEEDED, min_tokens=30, ignore_eos=False),
}


async def read(engine: EngineClient, name: str, prompt: Sequence[int], params: SamplingParams) -> RequestOutput:
    answers = Answers(name, list(prompt), list(prompt), params)
    accepted = 0
    async for news in engine.submit(prompt, params, request_id=name):
        accepted += not news.token_ids and news.finish_reason is None
        answers.add(news)
    assert accepted == 1, "that a request is accepted is said once"
    return answers.output


def undisturbed(model: str, prompt: Sequence[int], params: SamplingParams) -> RequestOutput:
    return run_alone(tiny_loop(**{**OPTIONS, "model": model}), prompt, params)


def kill(engine: EngineClient, number: int = signal.SIGKILL) -> None:
    pid = engine_pid(engine)
    assert pid is not None
    os.kill(pid, number)


def assert_same(output: RequestOutput, expected: RequestOutput) -> None:
    assert output.error is None
    assert without_ids(output.outputs) == without_ids(expected.outputs)
    assert output.prompt_logprobs == expected.prompt_logprobs


@asynccontextmanager
async def started(engine: EngineClient):  # type: ignore[no-untyped-def]
    await engine.start()
    try:
        await engine.wait_ready()
        yield engine
    finally:
        await engine.close()


def real_engine(model: str, **options: Any) -> EngineClient:
    return engine_client(options_from({**OPTIONS, "model": model, **options}), heartbeat_timeout_s=1.5)


async def until_some_have_begun(engine: EngineClient, count: int) -> None:
    async with asyncio.timeout(30):
        while len(engine._streams.begun_ids()) < count:
            await asyncio.sleep(0.002)


async def test_all_kinds_of_requests_go_on_with_the_same_bits() -> None:
    model = str(deep_model())
    prompts = {kind: [40 + idx, *range(41, 60)] for idx, kind in enumerate(KINDS)}
    async with started(real_engine(model)) as engine:
        tasks = {kind: asyncio.create_task(read(engine, kind, prompts[kind], KINDS[kind])) for kind in KINDS}
        for _ in range(2):
            await until_some_have_begun(engine, 3)
            kill(engine)
            await asyncio.sleep(0.1)
            await asyncio.wait_for(engine.wait_ready(), 20)
        outputs = {kind: await task for kind, task in tasks.items()}
        assert engine.status().epoch == 3
        assert (await engine.call("check"))["differences"] == []
    for kind, params in KINDS.items():
        assert_same(outputs[kind], undisturbed(model, prompts[kind], params))


async def test_a_real_model_goes_on_with_the_same_bits() -> None:
    model = smollm2_or_skip()
    kinds = ("greedy", "several", "best", "logprobs", "stop text", "penalties")
    prompt = [504, 3575, 282, 4649, 314]
    async with started(real_engine(model, threads=None)) as engine:

        async def answer_all(run: str) -> list[RequestOutput]:
            reading = [read(engine, f"{run} {kind}", prompt, KINDS[kind]) for kind in kinds]
            return await asyncio.gather(*reading)

        before = await answer_all("undisturbed")
        again = asyncio.create_task(answer_all("disturbed"))
        await until_some_have_begun(engine, len(kinds))
        kill(engine)
        for output, expected in zip(await again, before, strict=True):
            assert_same(output, expected)
        assert engine.status().epoch == 2


async def test_a_frozen_engine_is_replaced_and_its_requests_go_on() -> None:
    model = str(deep_model())
    long = replace(SEEDED, n=8, max_tokens=200)
    async with started(real_engine(model)) as engine:
        reading = asyncio.create_task(read(engine, "long", PROMPT, long))
        await until_some_have_begun(engine, 1)
        pid = engine_pid(engine)
        kill(engine, signal.SIGSTOP)
        output = await asyncio.wait_for(reading, 60)
        assert engine_pid(engine) != pid
    assert_same(output, undisturbed(model, PROMPT, long))


async def test_new_requests_wait_for_the_next_engine() -> None:
    async with started(real_engine(str(tiny_model()), max_queue=3)) as engine:
        kill(engine)
        async with asyncio.timeout(20):
            while engine.status().is_ready:
                await asyncio.sleep(0.002)
        assert engine.status().is_restarting
        held = [asyncio.create_task(read(engine, f"r{idx}", PROMPT, GREEDY)) for idx in range(5)]
        outcomes = await asyncio.gather(*held, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [*[RequestOutput] * 3, *[CapacityError] * 2]
    assert "of at most 3" in str(outcomes[4])


async def test_an_engine_that_is_slow_to_come_up_is_waited_for() -> None:
    given = options_from({**OPTIONS, "model": str(tiny_model())})
    slow = EngineClient(command([{"mute": 4.0}]), pack_options(given), heartbeat_timeout_s=3.0)
    async with started(slow) as engine:
        assert (await read(engine, "r", PROMPT, GREEDY)).finished
        assert engine.status().epoch == 1


def dying_engine(*deaths: dict[str, Any], **options: Any) -> EngineClient:
    given = options_from({**OPTIONS, "model": str(tiny_model()), "kv_cache_memory": "4MiB", **options})
    return EngineClient(command(deaths), pack_options(given), heartbeat_timeout_s=5)


async def outcomes_of(
    engine: EngineClient, count: int, **others: SamplingParams
) -> dict[str, RequestOutput | BaseException]:
    """Run requests r0, r1, ... together; each has a prompt of its own, all but `others` the same parameters."""
    names = [f"r{idx}" for idx in range(count)]
    async with started(engine), asyncio.timeout(100):
        reading = [read(engine, name, [40 + idx, 9], others.get(name, SHORT)) for idx, name in enumerate(names)]
        return dict(zip(names, await asyncio.gather(*reading, return_exceptions=True), strict=True))


def assert_only_these_end(
    outcomes: Mapping[str, RequestOutput | BaseException], *guilty: str, **others: SamplingParams
) -> None:
    loop = tiny_loop(**OPTIONS)
    for idx, (name, outcome) in enumerate(outcomes.items()):
        if name in guilty:
            assert isinstance(outcome, PoisonRequestError), (name, outcome)
            assert "signal 9" in str(outcome)
        else:
            assert isinstance(outcome, RequestOutput), (name, outcome)
            assert_same(outcome, run_alone(loop, [40 + idx, 9], others.get(name, SHORT)))


@pytest.mark.parametrize(("count", "guilty"), [(1, "r0"), (2, "r1"), (7, "r0"), (7, "r6")])
@pytest.mark.parametrize("token", [0, 5])
async def test_a_request_that_kills_engines_ends_alone(count: int, guilty: str, token: int) -> None:
    engine = dying_engine({"request": guilty, "token": token})
    assert_only_these_end(await outcomes_of(engine, count), guilty)


async def test_one_of_64_requests_that_kills_engines_ends_alone() -> None:
    assert_only_these_end(await outcomes_of(dying_engine({"request": "r63", "token": 3}), 64), "r63")


async def test_two_requests_that_kill_engines_at_different_tokens_end() -> None:
    engine = dying_engine({"request": "r1", "token": 2}, {"request": "r4", "token": 6})
    assert_only_these_end(await outcomes_of(engine, 6), "r1", "r4")


async def test_a_request_that_kills_engines_when_it_is_admitted_ends_alone() -> None:
    assert_only_these_end(await outcomes_of(dying_engine({"request": "r2"}), 4), "r2")


@pytest.mark.parametrize("count", [1, 5])
async def test_a_request_whose_constraint_kills_engines_when_it_is_compiled_ends_alone(count: int) -> None:
    bound = {
        name: replace(SHORT, structured_outputs=StructuredOutputs(regex=regex))
        for name, regex in {"r0": "[a-c]{12}", "r2": "[a-d]{12}", "r3": "[a-c]{12}"}.items()
    }
    engine = dying_engine({"compiles": "r0"})
    assert_only_these_end(await outcomes_of(engine, count, **bound), "r0", **bound)


async def test_engines_that_die_before_they_are_ready_end_open_requests_after_a_few() -> None:
    later = range(2, MOST_FUTILE + 4)
    engine = dying_engine({"start": list(later)})
    async with started(engine):
        reading = asyncio.create_task(read(engine, "r", PROMPT, replace(GREEDY, n=8, max_tokens=400)))
        await until_some_have_begun(engine, 1)
        kill(engine)
        with pytest.raises(EngineDeadError, match="as the engines before it did"):
            await asyncio.wait_for(reading, 60)


async def test_an_engine_that_cannot_be_built_again_ends_open_requests_with_the_reason() -> None:
    engine = dying_engine({"fatal": [2]})
    async with started(engine):
        reading = asyncio.create_task(read(engine, "r", PROMPT, replace(GREEDY, n=8, max_tokens=400)))
        await until_some_have_begun(engine, 1)
        kill(engine)
        with pytest.raises(EngineDeadError, match="no memory for it any more"):
            await asyncio.wait_for(reading, 60)
        with pytest.raises(EngineDeadError, match="no memory for it any more"):
            await read(engine, "s", PROMPT, GREEDY)


async def test_a_deadline_passes_also_while_there_is_no_engine() -> None:
    engine = dying_engine({"start": [2, 3, 4]})
    async with started(engine):

        async def ask() -> None:
            long = replace(GREEDY, n=8, max_tokens=400)
            async for _ in engine.submit(PROMPT, long, request_id="r", deadline_s=1.0):
                pass

        reading = asyncio.create_task(ask())
        await until_some_have_begun(engine, 1)
        kill(engine)
        with pytest.raises(DeadlineExceededError, match="passed after 1"):
            await asyncio.wait_for(reading, 30)


async def test_a_reader_who_leaves_while_there_is_no_engine_is_forgotten() -> None:
    async with started(real_engine(str(deep_model()))) as engine:
        stream = engine.submit(PROMPT, replace(GREEDY, n=8, max_tokens=400))
        async for news in stream:
            if news.token_ids:
                break
        kill(engine)
        async with asyncio.timeout(20):
            while engine.status().is_ready:
                await asyncio.sleep(0.002)
        await stream.aclose()  # type: ignore[attr-defined]
        await engine.wait_ready()
        stats = await engine.call("stats")
        assert stats["num_running"] == stats["num_waiting"] == 0


async def test_a_model_that_changed_on_disk_is_not_mixed_into_open_answers(tmp_path: Any) -> None:
    for file in tiny_model().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    async with started(real_engine(str(tmp_path))) as engine:
        reading = asyncio.create_task(read(engine, "r", PROMPT, replace(GREEDY, n=16, max_tokens=400)))
        await until_some_have_begun(engine, 1)
        weights = tmp_path / "model.safetensors"
        changed = bytearray(weights.read_bytes())
        changed[-5] ^= 1
        weights.unlink()
        weights.write_bytes(changed)
        kill(engine)
        with pytest.raises(TriviumError, match="changed while they were served"):
            await asyncio.wait_for(reading, 30)
