"""The first promise with a disk cache, on a real model: the same bits off, cold, warm, after a restart, after damage.

The pool is so small that nothing survives in it from one round to the next; what is found comes from the disk.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.tiny_engine import run_alone, tiny_loop
from trivium.api import Answers, RequestOutput
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.kernels import native

EXECUTORS = ["reference"] if native.load() is None else ["reference", "native"]
SHARED = list(range(40, 120))
PROMPTS = [[*SHARED, 5, 6, 7], [*SHARED[:50], 9] * 2, list(range(130, 230)), [*SHARED, *range(200, 240)]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=1.1, seed=3, max_tokens=9, logprobs=1),
    SamplingParams(temperature=0.8, seed=4, max_tokens=6, n=2, logprobs=0),
    SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1, prompt_logprob_start=70),
]


def answer(loop: EngineLoop, prompt: list[int], params: SamplingParams) -> RequestOutput:
    output = run_alone(loop, prompt, params)
    assert loop.check() == []
    return output


def assert_same(left: RequestOutput, right: RequestOutput) -> None:
    for ours, theirs in zip(left.outputs, right.outputs, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs
        assert ours.text == theirs.text
    assert left.prompt_logprobs == right.prompt_logprobs


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_answers_are_the_same_bits_wherever_their_prefix_comes_from(
    tmp_path: Path, executor: str, window: int | None, preemption: str
) -> None:
    options: dict[str, object] = {
        "window": window,
        "executor": executor,
        "kv_cache_memory": "48KiB",
        "max_num_batched_tokens": 33,
        "max_model_len": 140,
    }
    off = tiny_loop(**options, prefix_cache=False)
    expected = [answer(off, prompt, params) for prompt in PROMPTS for params in PARAMS]
    off.close()
    kept = {**options, "disk_cache": f"{tmp_path / 'kv'}:8MiB", "preemption": preemption}

    def compare(loop: EngineLoop) -> int:
        """Return how many prompt tokens were found."""
        found = [answer(loop, prompt, params) for prompt in PROMPTS for params in PARAMS]
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs)
        return sum(output.num_cached_tokens for output in found)

    cold = tiny_loop(**kept)
    compare(cold)
    assert compare(cold) > 0, "warm"
    cold.close()
    again = tiny_loop(**kept)
    first = answer(again, PROMPTS[0], PARAMS[0])
    assert first.num_cached_tokens == 80, "from the disk, after a restart"
    assert_same(first, expected[0])
    compare(again)
    again.close()
    chance = random.Random(1)  # noqa: S311
    for path in (tmp_path / "kv").glob("*.kv"):
        raw = bytearray(path.read_bytes())
        for at in chance.sample(range(len(raw)), 12):
            raw[at] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
    damaged = tiny_loop(**kept)
    compare(damaged)
    assert damaged.stats()["step_errors_total"] == 0
    damaged.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_other_models_and_arithmetic_share_a_directory_and_no_page(tmp_path: Path, executor: str) -> None:
    kept = {"executor": executor, "disk_cache": f"{tmp_path / 'kv'}:8MiB"}
    loop = tiny_loop(**kept)
    answer(loop, PROMPTS[0], PARAMS[0])
    loop.close()
    other = tiny_loop(**kept, window=24)
    assert answer(other, PROMPTS[0], PARAMS[0]).num_cached_tokens == 0
    other.close()
    loop = tiny_loop(**kept)
    assert answer(loop, PROMPTS[0], PARAMS[0]).num_cached_tokens == 80
    loop.close()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_cache_salt_is_part_of_what_is_on_disk(tmp_path: Path, executor: str) -> None:
    kept = {"executor": executor, "disk_cache": f"{tmp_path / 'kv'}:8MiB"}

    def cached(salt: str) -> int:
        loop = tiny_loop(**kept)
        answers = Answers("one", PROMPTS[0], PROMPTS[0], PARAMS[0])
        loop.submit(Submit(request_id="one", prompt_ids=PROMPTS[0], params=PARAMS[0], cache_salt=salt))
        while loop.has_work:
            for news in loop.step():
                answers.add(news)
        loop.close()
        return answers.output.num_cached_tokens

    assert [cached("a"), cached("b"), cached("a")] == [0, 0, 80]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_a_crowd_that_preempts_and_swaps_gets_the_same_bits(tmp_path: Path, executor: str, preemption: str) -> None:
    options: dict[str, object] = {"executor": executor, "kv_cache_memory": "48KiB", "max_num_batched_tokens": 64}
    params = [SamplingParams(temperature=0.9, seed=idx, max_tokens=60, ignore_eos=True) for idx in range(8)]
    prompts = [[*SHARED[: 10 * idx], *range(3 + idx, 40)] for idx in range(8)]
    off = tiny_loop(**options, prefix_cache=False)
    expected = [answer(off, prompt, each) for prompt, each in zip(prompts, params, strict=True)]
    off.close()
    loop = tiny_loop(
        **options, disk_cache=f"{tmp_path / 'kv'}:8MiB", preemption=preemption, admission="max-utilization"
    )
    answers = {}
    for idx, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        answers[f"r{idx}"] = Answers(f"r{idx}", prompt, prompt, each)
        loop.submit(Submit(request_id=f"r{idx}", prompt_ids=prompt, params=each))
    while loop.has_work:
        for news in loop.step():
            answers[news.request_id].add(news)
        assert loop.check() == []
    assert loop.stats()["preemptions_total"] > 0
    for ours, theirs in zip(answers.values(), expected, strict=True):
        assert_same(ours.output, theirs)
    loop.close()
