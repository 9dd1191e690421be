"""Freshly drawn models in transformers and here: logits within 1e-4, greedy tokens equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.drawn_cases import CONFIG_CLASSES, drawn_case
from support.golden import generate_greedily, load_executor, prompt_logits
from support.golden_cases import CASES, GoldenCase

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),  # other libraries' deprecations are not ours to fail on
]
TOLERANCE = 1e-4
DRAWN = [drawn_case(family, seed) for family in CONFIG_CLASSES for seed in (1, 2, 3)]


def compare(case: GoldenCase, seed: int, directory: Path) -> None:
    from support import oracle  # noqa: PLC0415  (needs torch)

    model = oracle.draw_model(case, seed)
    oracle.save(model, case, directory)
    executor = load_executor(directory)
    for prompt, reach in oracle.prompts(case):
        answer = oracle.answer(model, prompt, reach)
        logits = prompt_logits(executor, prompt, reach, chunk_len=11)[list(answer.rows)]
        np.testing.assert_allclose(logits, answer.logits, rtol=0, atol=TOLERANCE, err_msg=f"{case} reach {reach}")
        if answer.margin > oracle.LEAST_MARGIN:
            drawn = generate_greedily(executor, prompt, reach, len(answer.greedy))
            assert drawn == list(answer.greedy), f"{case} reach {reach}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fresh_weights_of_a_golden_model_agree(case: GoldenCase, tmp_path: Path) -> None:
    compare(case, case.seed + 7, tmp_path)


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case.name)
def test_a_drawn_configuration_agrees(case: GoldenCase, tmp_path: Path) -> None:
    compare(case, case.seed, tmp_path)
