"""Steps made up for timing and comparing are legal ones, and every page that they read holds keys."""

from __future__ import annotations

import numpy as np
import pytest

from support import fused_graphs
from support.plan_executor import NUM_PAGES, PlanExecutor, compile_golden
from trivium.cache.spec import KVGroup, KVSpec
from trivium.plan.cost import Workload, chunk, decode
from trivium.runtime.check import StepLimits, check_step
from trivium.runtime.rehearsal import Part, build_step, pages_needed, text_steps, time_instructions

SPEC = KVSpec((KVGroup("full", (0,), 8), KVGroup("window", (1,), 8, window=6)), page_len=4)


def check(step: object, *, num_pages: int = 64) -> None:
    """Hold a step to the rules of executors."""
    limits = StepLimits(
        spec=SPEC, num_pages=(num_pages, num_pages), vocab_size=50, model_width=8, max_logit_rows=64, takes_embeds=False
    )
    check_step(step, limits)  # type: ignore[arg-type]


def test_a_text_is_run_at_once_and_its_last_tokens_alone() -> None:
    steps = text_steps(range(1, 12), SPEC, num_alone=2)
    assert [step.token_ids.tolist() for step in steps] == [list(range(1, 10)), [10], [11]]
    assert [step.positions.tolist() for step in steps] == [list(range(9)), [9], [10]]
    assert [step.kv_lens.tolist() for step in steps] == [[9], [10], [11]]
    assert [len(step.logit_rows) for step in steps] == [9, 1, 1]
    for step in steps:
        check(step)


def test_requests_have_pages_of_their_own() -> None:
    tokens = np.arange(9, dtype=np.int32)
    parts = [Part(tokens=tokens, start=8, end=9, first_page=0), Part(tokens=tokens, start=2, end=6, first_page=5)]
    step = build_step(parts, SPEC)
    check(step)
    assert step.page_tables[0].tolist() == [[0, 1, 2], [5, 6, -1]]
    assert step.logit_rows.tolist() == [0, 4]
    assert build_step(parts, SPEC, wants_all=True).logit_rows.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("loads", "pages"),
    [([decode(3, kv_len=9)], 9), ([chunk(9)], 3), ([decode(1, kv_len=4), decode(2, kv_len=5)], 4)],
)
def test_the_pages_of_the_largest_load_are_asked_for(loads: list[Workload], pages: int) -> None:
    assert pages_needed(loads, SPEC) == (pages, pages)


@pytest.mark.parametrize("load", [decode(1, kv_len=5), decode(3, kv_len=17), chunk(30)])
def test_a_load_is_timed_on_full_pages(load: Workload) -> None:
    plan, graph, config = compile_golden("gemma3-pattern")
    executor = PlanExecutor(plan, graph, config, fused_graphs.parameters(graph))
    spec = plan.kv.spec
    assert max(pages_needed([load], spec)) <= NUM_PAGES
    seconds = time_instructions(
        executor, load, spec, vocab_size=config.vocab_size, max_num_tokens=8 if load.num_requests > 1 else 64, rounds=5
    )
    assert executor.timings == [load.num_tokens] * 5
    assert seconds == pytest.approx([1e-6 * place + 3e-9 for place in range(len(seconds))])  # the median round
    timed = executor.steps[-1]
    assert timed.num_tokens == load.num_tokens
    assert timed.kv_lens.tolist() == [load.kv_len] * load.num_requests
    assert len(timed.logit_rows) == load.num_rows
    assert len(timed.copies) == 0
    for group, table in enumerate(timed.page_tables):
        for page in table[table >= 0].tolist():
            assert np.frombuffer(executor.store.export_page(group, page), "<f4").any()
