"""The native executor against transformers: every architecture and rope kind, in float32."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from support.golden import MODELS, generate_greedily, golden_answers, prompt_logits
from support.golden_cases import CASES
from support.native import native_from_checkpoint
from trivium.kernels import native
from trivium.runtime.native import NativeExecutor

NAMES = [case.name for case in CASES]
TOLERANCE = 1e-4

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")


@cache
def executor_of(name: str) -> NativeExecutor:
    return native_from_checkpoint(MODELS / name, max_tokens=256)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    for golden in golden_answers(MODELS / name):
        logits = prompt_logits(executor_of(name), golden.prompt, golden.reach)[golden.rows]
        np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=TOLERANCE, err_msg=f"reach {golden.reach}")


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers_from_a_chunked_prompt(name: str) -> None:
    for golden in golden_answers(MODELS / name):
        drawn = generate_greedily(executor_of(name), golden.prompt, golden.reach, len(golden.greedy), chunk_len=7)
        assert drawn == golden.greedy, f"reach {golden.reach}"


@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_same_bits_in_chunks_of_any_length(name: str) -> None:
    golden = golden_answers(MODELS / name)[1]
    executor = executor_of(name)
    whole = prompt_logits(executor, golden.prompt, golden.reach)
    for chunk_len in (1, 5, 16, 33):
        chunked = prompt_logits(executor, golden.prompt, golden.reach, chunk_len=chunk_len)
        np.testing.assert_array_equal(chunked, whole, err_msg=f"chunks of {chunk_len}")
