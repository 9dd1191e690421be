"""The reference executor on torch gives the goldens' logits too, whatever the device."""

from __future__ import annotations

import numpy as np
import pytest

from support.golden import MODELS, generate_greedily, golden_answers, load_executor, prompt_logits
from support.golden_cases import CASES

pytestmark = pytest.mark.oracle
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def has_gpu() -> bool:
    import torch  # noqa: PLC0415  (the oracle)

    return torch.cuda.is_available()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_torch_gives_the_logits_and_tokens_of_transformers(name: str, device: str) -> None:
    if device == "cuda" and not has_gpu():
        pytest.skip("no GPU here")
    executor = load_executor(MODELS / name, array_library="torch", device=device)
    for golden in golden_answers(MODELS / name):
        logits = prompt_logits(executor, golden.prompt, golden.reach, chunk_len=33)[golden.rows]
        np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=1e-4, err_msg=f"reach {golden.reach}")
        assert generate_greedily(executor, golden.prompt, golden.reach, len(golden.greedy)) == golden.greedy
