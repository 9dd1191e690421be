"""Faults that users of other engines met in scheduler and cache, tried on a real loop over the tiny model.

Case numbers are those of docs/reliability.md. `reference` is an engine without a cache whose chunks hold whole prompts;
what it answers alone is right by definition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from support.tiny_engine import run_alone, tiny_loop
from support.tiny_model import write_tiny_model
from trivium.api import Answers, RequestOutput
from trivium.base.errors import ConfigError, RequestTooLargeError
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def reference() -> Iterator[EngineLoop]:
    loop = tiny_loop(prefix_cache=False, max_num_batched_tokens=512, max_num_seqs=4)
    yield loop
    loop.close()


class Crowd:
    """Requests open at once in one loop; steps only when told."""

    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop
        self.answers: dict[str, Answers] = {}

    def add(self, name: str, prompt: Sequence[int], params: SamplingParams = GREEDY) -> None:
        self.loop.submit(Submit(request_id=name, prompt_ids=list(prompt), params=params))
        self.answers[name] = Answers(name, list(prompt), list(prompt), params)

    def step(self) -> None:
        for news in self.loop.step():
            self.answers[news.request_id].add(news)

    def run(self) -> None:
        while self.loop.has_work:
            self.step()

    def output(self, name: str) -> RequestOutput:
        return self.answers[name].output

    def tokens(self, name: str) -> list[int]:
        return self.output(name).outputs[0].token_ids


def _prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 259, length).tolist()


def _assert_same(output: RequestOutput, expected: RequestOutput) -> None:
    assert output.error is None
    assert [answer.token_ids for answer in output.outputs] == [answer.token_ids for answer in expected.outputs]
    assert [answer.text for answer in output.outputs] == [answer.text for answer in expected.outputs]
    assert [answer.finish_reason for answer in output.outputs] == [a.finish_reason for a in expected.outputs]


def test_a14_a_repetition_penalty_does_not_depend_on_a_warm_cache(reference: EngineLoop) -> None:
    loop = tiny_loop()
    prompt, params = _prompt(1, 60), SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=20)
    expected = run_alone(reference, prompt, params)

    cold, warm = run_alone(loop, prompt, params), run_alone(loop, prompt, params)
    loop.flush()
    flushed = run_alone(loop, prompt, params)

    assert warm.num_cached_tokens == len(prompt) - 1
    assert flushed.num_cached_tokens == 0
    for output in (cold, warm, flushed):
        _assert_same(output, expected)


def test_a15_presence_and_frequency_do_not_punish_the_prompt(reference: EngineLoop) -> None:
    prompt = [*_prompt(2, 4) * 6]
    first = {
        name: run_alone(reference, prompt, SamplingParams(temperature=0.0, max_tokens=1, logprobs=5, **penalty))
        for name, penalty in {
            "plain": {},
            "presence": {"presence_penalty": 2.0},
            "frequency": {"frequency_penalty": 2.0},
        }.items()
    }

    assert first["presence"].outputs[0].token_ids == first["plain"].outputs[0].token_ids
    assert first["frequency"].outputs[0].token_ids == first["plain"].outputs[0].token_ids
    assert first["presence"].outputs[0].logprobs == first["plain"].outputs[0].logprobs


@pytest.mark.parametrize("length", [15, 16, 17, 49])
@pytest.mark.parametrize("chunk", [7, 512])
def test_d02_prompt_logprobs_are_the_same_when_the_prefix_is_cached(
    reference: EngineLoop, length: int, chunk: int
) -> None:
    loop = tiny_loop(max_num_batched_tokens=chunk)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    shared = _prompt(3, length)
    prompts = [shared, [*shared, 7, 8], [*shared[:-2], 9]]
    expected = [run_alone(reference, prompt, params).prompt_logprobs for prompt in prompts]

    for order in ([0, 1, 2], [2, 1, 0]):
        for idx in (*order, *order):
            output = run_alone(loop, prompts[idx], params)
            assert output.prompt_logprobs == expected[idx]
            assert output.prompt_logprobs is not None
            assert len(output.prompt_logprobs) == len(prompts[idx])
            assert output.num_cached_tokens == 0
        loop.flush()


def test_d02_a_later_start_of_prompt_logprobs_allows_the_prefix_to_be_cached(reference: EngineLoop) -> None:
    loop, prompt = tiny_loop(), _prompt(4, 50)
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, prompt_logprob_start=40)
    expected = run_alone(reference, prompt, params)
    run_alone(loop, prompt, GREEDY)

    output = run_alone(loop, prompt, params)

    assert output.num_cached_tokens == 39
    assert output.prompt_logprobs == expected.prompt_logprobs
    assert len(expected.prompt_logprobs or ()) == 10


def test_d03_prompts_that_confuse_weak_hashes_do_not_share_a_cache(reference: EngineLoop) -> None:
    loop = tiny_loop()
    base = _prompt(5, 64)
    neighbours = []
    for j in (0, 15, 16, 40, 62):
        shifted, swapped = list(base), list(base)
        shifted[j], shifted[j + 1] = (shifted[j] + 31) % 256 + 3, (shifted[j + 1] - 31) % 256 + 3
        swapped[j], swapped[j + 1] = base[j + 1], base[j]
        neighbours += [shifted, swapped]
    neighbours += [sorted(base), [*base[:48], *_prompt(6, 16)]]
    run_alone(loop, base, GREEDY)

    for prompt in neighbours:
        output = run_alone(loop, prompt, GREEDY)
        same = next((i for i, (a, b) in enumerate(zip(prompt, base, strict=True)) if a != b), len(base))
        assert output.num_cached_tokens <= max(same, 1)
        _assert_same(output, run_alone(reference, prompt, GREEDY))


def test_d03_cached_tokens_never_exceed_the_longest_true_common_prefix() -> None:
    loop, rng = tiny_loop(kv_cache_memory="256KiB"), np.random.default_rng(7)
    seen: list[list[int]] = []
    params = SamplingParams(temperature=0.0, max_tokens=1)

    for _ in range(400):
        prompt = rng.integers(3, 6, rng.integers(1, 40)).tolist()
        output = run_alone(loop, prompt, params)
        longest = max((_common(prompt, other) for other in seen), default=0)
        assert output.num_cached_tokens <= min(longest, len(prompt) - 1)
        seen.append([*prompt, *output.outputs[0].token_ids])
    assert loop.check() == []


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_d04_a_prefix_in_use_survives_a_storm_of_evictions(reference: EngineLoop) -> None:
    loop = tiny_loop(kv_cache_memory="64KiB", max_num_batched_tokens=64)
    crowd, prompt = Crowd(loop), _prompt(8, 40)
    long = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    crowd.add("held", prompt, long)
    for idx in range(60):
        crowd.add(f"storm{idx}", [*prompt[: idx % 40], *_prompt(100 + idx, 20)], SamplingParams(max_tokens=1, seed=1))
        crowd.step()
        assert loop.check() == []
    crowd.run()

    _assert_same(crowd.output("held"), run_alone(reference, prompt, long))
    stats = loop.stats()
    assert stats["kv_pages_used"] == 0
    assert stats["kv_pages_free"] + stats["kv_pages_cached"] == stats["kv_pages_total"]  # type: ignore[operator]


def test_d05_answers_that_ended_on_a_stop_text_do_not_spoil_later_ones(reference: EngineLoop) -> None:
    loop = tiny_loop()
    for seed in range(20):
        stop = run_alone(reference, _prompt(seed, 30), GREEDY).outputs[0].text[1:3] or "x"
        run_alone(loop, _prompt(seed, 30), SamplingParams(temperature=0.0, max_tokens=30, stop=(stop,)))

    for seed in range(20):
        prompt = [*_prompt(seed, 30)[: 10 + seed], 77]
        _assert_same(run_alone(loop, prompt, GREEDY), run_alone(reference, prompt, GREEDY))


def test_e01_a_request_larger_than_the_pool_is_refused_and_blocks_nobody(reference: EngineLoop) -> None:
    loop = tiny_loop(kv_cache_memory="32KiB", max_model_len=512)
    crowd = Crowd(loop)
    crowd.add("before", _prompt(9, 20))
    with pytest.raises(RequestTooLargeError, match=r"200 tokens.*holds 128"):
        crowd.add("never", _prompt(10, 200))
    grows = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    crowd.add("grows", _prompt(11, 90), grows)
    crowd.add("choices", _prompt(12, 20), SamplingParams(n=8, max_tokens=60, seed=1, ignore_eos=True))
    crowd.add("after", _prompt(13, 20))
    crowd.run()

    for name, seed in (("before", 9), ("after", 13)):
        _assert_same(crowd.output(name), run_alone(reference, _prompt(seed, 20), GREEDY))
    grown = crowd.output("grows").outputs[0]
    assert grown.finish_reason == "length"
    assert len(grown.token_ids) == 128 + 1 - 90
    assert grown.token_ids == run_alone(reference, _prompt(11, 90), grows).outputs[0].token_ids[: len(grown.token_ids)]
    assert {answer.finish_reason for answer in crowd.output("choices").outputs} == {"length"}
    assert loop.check() == []


def test_e02_a_short_request_overtakes_a_long_prefill_and_streams_go_on() -> None:
    crowd = Crowd(tiny_loop(max_num_batched_tokens=32))
    crowd.add("stream", _prompt(14, 5), SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
    crowd.step()
    crowd.add("long", _prompt(15, 480))
    crowd.step()
    crowd.add("short", _prompt(16, 20))
    steps_to_short = steps = 0
    while not crowd.tokens("long"):
        streamed = len(crowd.tokens("stream"))
        crowd.step()
        steps += 1
        steps_to_short = steps_to_short or (steps if crowd.tokens("short") else 0)
        assert len(crowd.tokens("stream")) == streamed + 1

    assert 0 < steps_to_short <= steps / 4


def test_e03_preempted_requests_lose_and_repeat_nothing(reference: EngineLoop) -> None:
    loop = tiny_loop(kv_cache_memory="64KiB", max_num_batched_tokens=32, check_accounting=True)
    crowd = Crowd(loop)
    plain = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    fussy = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True, frequency_penalty=0.7, stop=("zq", "\x07"))
    for idx in range(16):
        crowd.add(f"r{idx}", _prompt(20 + idx, 12 + idx), fussy if idx % 2 else plain)
    crowd.run()

    for idx in range(16):
        expected = run_alone(reference, _prompt(20 + idx, 12 + idx), fussy if idx % 2 else plain)
        _assert_same(crowd.output(f"r{idx}"), expected)
    stats = loop.stats()
    assert stats["preemptions_total"]
    assert stats["accounting_differences_total"] == 0


def test_e04_aborts_at_any_moment_leave_nothing_behind() -> None:
    loop = tiny_loop(kv_cache_memory="64KiB", max_num_batched_tokens=16, max_queue=64)
    crowd = Crowd(loop)
    for round_ in range(100):
        name, kind = f"a{round_}", round_ % 5
        params = SamplingParams(n=4 if kind == 3 else 1, max_tokens=1 if kind == 4 else 12, seed=round_)
        crowd.add(name, _prompt(round_, 30), params)
        for _ in range((0, 1, 4, 3, 2)[kind]):
            crowd.step()
        loop.abort([name])
        loop.abort([name])
        assert loop.check() == []
    crowd.run()

    stats = loop.stats()
    assert stats["num_running"] == stats["num_waiting"] == stats["kv_pages_used"] == 0
    assert stats["kv_pages_free"] + stats["kv_pages_cached"] == stats["kv_pages_total"]  # type: ignore[operator]
    assert loop.open_requests == ()


@pytest.mark.parametrize("options", [{"page_len": 1}, {"page_len": 16}, {"prefix_cache": False}, {"window": 24}])
def test_page_length_and_cache_and_chunks_change_no_answer(options: dict[str, object]) -> None:
    window = options.get("window")
    plain = tiny_loop(window=window, prefix_cache=False, max_num_batched_tokens=512)  # type: ignore[arg-type]
    expected = {seed: run_alone(plain, _prompt(seed, 70), GREEDY) for seed in range(4)}
    for chunk in (1, 7, 64):
        loop = tiny_loop(max_num_batched_tokens=chunk, **options)  # type: ignore[arg-type]
        crowd = Crowd(loop)
        for seed, output in expected.items():
            crowd.add(f"r{seed}", _prompt(seed, 70))
            crowd.add(f"twin{seed}", output.prompt_token_ids)
        crowd.run()
        for seed, output in expected.items():
            _assert_same(crowd.output(f"r{seed}"), output)
            _assert_same(crowd.output(f"twin{seed}"), output)
        assert loop.check() == []
        loop.close()


def test_no_more_context_than_the_model_has_can_be_asked_for_and_rope_scaling_counts(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    config = json.loads((model / "config.json").read_text())
    for positions, scaling in ((512, None), (1024, {"rope_type": "dynamic", "factor": 2.0})):
        (model / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
        loop = tiny_loop(model=str(model), max_model_len=positions)
        assert loop.limits.max_model_len == positions
        loop.close()
        with pytest.raises(ConfigError, match=f"max_model_len is {positions + 1}, but .* {positions} positions"):
            tiny_loop(model=str(model), max_model_len=positions + 1)
