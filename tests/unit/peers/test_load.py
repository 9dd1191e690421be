"""Runs whose work is not comparable fail; the others are told in tokens per second."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.peers.load import Lengths, faults, figures, parser
from benchmarks.peers.prompts import draw
from trivium.bench.measure import Measured


def answer(**more: object) -> Measured:
    """Make an answer of 4 tokens to a prompt of 8."""
    made = Measured(began_s=0.0, ttft_s=0.1, gaps_s=[0.2] * 3, ended_s=0.7, prompt_tokens=8, completion_tokens=4)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def options(**lengths: int) -> argparse.Namespace:
    words = ["--url", "http://x", "--words", "w"]
    for name, value in {"prompt_len": 8, "output_len": 4, **lengths}.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    return parser().parse_args(words)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"error": "HTTP 400: no"}, "HTTP 400: no"),
        ({"completion_tokens": 3}, "3 tokens were generated, not 4"),
        ({"prompt_tokens": 9}, "counted 9 prompt tokens, not 8"),
        ({"cached_tokens": 2}, "2 of 8 prompt tokens came from a cache"),
    ],
)
def test_an_answer_to_other_work_fails_the_run(more: dict[str, object], told: str) -> None:
    made = figures([answer(), answer(**more)], 2.0, options())
    assert list(made) == ["error"]
    assert made["error"].startswith("1 of 2 requests: ")
    assert told in made["error"]


def test_a_server_that_counts_no_prompt_tokens_is_taken_at_its_word() -> None:
    assert list(faults([answer(prompt_tokens=0)], Lengths(8, 4))) == []


def test_a_prompt_may_come_from_a_cache_where_that_is_meant() -> None:
    cached = answer(cached_tokens=7)
    assert list(faults([cached], Lengths(8, 4))) == ["7 of 8 prompt tokens came from a cache"]
    assert list(faults([cached], Lengths(8, 4, may_be_cached=True))) == []


def test_output_tokens_count_over_the_whole_time() -> None:
    made = figures([answer(), answer(ended_s=1.0)], 2.0, options())
    assert made["tokens_per_s"] == 4.0
    assert made["figures"]["ttft_p50_ms"] == pytest.approx(100)
    assert made["figures"]["tpot_p99_ms"] == pytest.approx(300)
    json.dumps(made)


def test_prompt_tokens_count_where_one_token_is_asked_for() -> None:
    made = figures([answer(completion_tokens=1, gaps_s=[])] * 3, 2.0, options(output_len=1))
    assert made["tokens_per_s"] == 12.0


def test_prompts_have_an_exact_length_and_repeat_by_seed_only(tmp_path: Path) -> None:
    words = tmp_path / "words.json"
    words.write_text(json.dumps(list(range(50))))
    prompts = draw(words, 3, 20, 16)
    assert {len(prompt) for prompt in prompts} == {16}
    assert draw(words, 3, 20, 16) == prompts
    assert not {tuple(prompt) for prompt in prompts} & {tuple(prompt) for prompt in draw(words, 4, 20, 16)}


def test_a_file_without_token_ids_is_refused(tmp_path: Path) -> None:
    words = tmp_path / "words.json"
    for text in ("[]", '["time"]'):
        words.write_text(text)
        with pytest.raises(ValueError, match="holds no token ids"):
            draw(words, 0, 1, 1)
