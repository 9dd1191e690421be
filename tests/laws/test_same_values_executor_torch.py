"""The same graph through torch gives the same values as through NumPy, to rounding."""

from __future__ import annotations

import numpy as np
import pytest

from support.tiny_steps import Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.runtime.reference import ReferenceExecutor

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("is_windowed", [False, True])
def test_torch_and_numpy_give_the_same_logits_and_pages(is_windowed: bool, softcap: float | None) -> None:
    pytest.importorskip("torch")
    config = tiny_config(window=5, softcap=softcap)
    graph, spec = tiny_graph(config, has_embeds=True), tiny_spec(config, page_len=4, is_windowed=is_windowed)
    parameters, num_pages = random_parameters(graph), (64,) * len(spec.groups)
    found = {}
    for library in ("numpy", "torch"):
        executor = ReferenceExecutor(
            graph, parameters, config, spec, num_pages, max_logit_rows=200, array_library=library
        )
        found[library] = run_story(executor)
    for numpy_part, torch_part in zip(found["numpy"], found["torch"], strict=True):
        np.testing.assert_allclose(torch_part, numpy_part, rtol=1e-5, atol=1e-5)


def run_story(executor: ReferenceExecutor) -> list[np.ndarray]:
    """Chunks, a decode beside a prefill, given embeddings, a copy, and a page out and in."""
    spec = executor.kv_spec
    tale = Story(spec, [list(range(64)) for _ in spec.groups])
    rng = np.random.default_rng(2)
    first, second = (tale.start(rng.integers(0, 61, length).tolist()) for length in (90, 40))
    collected = []
    for parts in ([(first, 70)], [(first, 1), (second, 30)], [(second, 1), (first, 1)], [(first, 18), (second, 9)]):
        step = tale.step(parts)
        step.embeds = np.where(rng.random((step.num_tokens, 16)) < 0.1, 0.5, np.nan).astype(np.float32)
        executor.forward(step)
        collected.append(executor.logits.copy())
        for request, _ in parts:
            tale.drop_out_of_window(request)
    executor.store.copy_page(0, 60, 3)
    executor.store.import_page(0, 4, executor.store.export_page(0, 61))
    collected += [np.frombuffer(executor.store.export_page(0, page), "<f4") for page in (3, 4)]
    return collected
