"""Every rule of a step, broken once, is an error before any KV is touched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from support.tiny_steps import ExactKernels, Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.base.errors import InternalError
from trivium.runtime.reference import ReferenceExecutor
from trivium.schedule.step import Step


def int32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def good_step(*, is_windowed: bool = False) -> tuple[ReferenceExecutor, Step]:
    """Two requests, of 5 and 2 tokens, in pages of 2 tokens."""
    config = tiny_config(window=2)
    spec = tiny_spec(config, page_len=2, is_windowed=is_windowed)
    graph, num_pages = tiny_graph(config), (8,) * len(spec.groups)
    parameters = random_parameters(graph)
    executor = ReferenceExecutor(graph, parameters, config, spec, num_pages, max_logit_rows=7, kernels=ExactKernels())
    tale = Story(spec, [list(range(8)) for _ in spec.groups])
    return executor, tale.step([(tale.start([1, 2, 3, 4, 5], 9), 5), (tale.start([6, 7], 9), 2)])


def edit(field: str, value: object) -> Callable[[Step], None]:
    return lambda step: setattr(step, field, value)


def poke(field: str, idx: int, value: int) -> Callable[[Step], None]:
    return lambda step: getattr(step, field).__setitem__(idx, value)


def poke_table(request: int, column: int, value: int) -> Callable[[Step], None]:
    return lambda step: step.page_tables[0].__setitem__((request, column), value)


BROKEN: list[tuple[Callable[[Step], None], str]] = [
    (edit("kv_lens", int32(5, 2, 1)), "step.starts is"),
    (edit("token_ids", np.zeros(7, np.int64)), "step.token_ids is int64"),
    (edit("mask_row", int32(0)), "step.mask_row is int32 (1,), not int32 (7,)"),
    (edit("starts", int32(0, 7, 7)), "a request without tokens"),
    (edit("starts", int32(0, 5, 6)), "covers 0..6 of 7 tokens"),
    (poke("token_ids", 1, 61), "step.token_ids spans 1..61, not 0..60"),
    (poke("token_ids", 1, -1), "step.token_ids spans -1..7"),
    (poke("positions", 6, 2), "step.positions[6] is 2; kv_lens says 1"),
    (poke("kv_lens", 0, 6), "step.positions[0] is 0; kv_lens says 1"),
    (poke("reaches", 0, 4), "step.kv_lens exceeds step.reaches"),
    (poke("logit_rows", 0, 1), "does not ascend"),
    (poke("logit_rows", 6, 7), "does not ascend within 7 tokens"),
    (poke("adapter_slot", 1, 0), "step.adapter_slot[1] is 0: no adapter is loaded there"),
    (poke("state_slot", 1, 0), "step has recurrent state"),
    (edit("embeds", np.zeros((7, 16), np.float32)), "this model takes none"),
    (edit("copies", np.array([[0, 1]], np.int32)), "not [C, 3]"),
    (edit("copies", np.array([[0, 1, 8]], np.int32)), "copies page 1 to 8 of group 0, which has 8 pages"),
    (edit("copies", np.array([[1, 1, 2]], np.int32)), "of group 1, which has 0 pages"),
    (edit("copies", np.array([[0, 3, 3]], np.int32)), "copies page 3 to 3"),
    (edit("page_tables", ()), "step has 0 page tables, not 1"),
    (edit("page_tables", (np.zeros((2, 2), np.int32),)), "has 2 pages a request; 3 are needed"),
    (edit("page_tables", (np.zeros((3, 3), np.int32),)), "is int32 (3, 3), not int32 [2, pages]"),
    (poke_table(0, 1, 8), "step.page_tables[0][0, 1] is 8; the group has 8 pages"),
    (poke_table(1, 0, -1), "step.page_tables[0][1, 0] is -1"),
    (poke_table(1, 0, 7), "two tokens of the step write one slot"),
]


@pytest.mark.parametrize(("breaking", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
def test_a_broken_rule_is_an_error_and_leaves_the_store_as_it_was(
    breaking: Callable[[Step], None], problem: str
) -> None:
    executor, step = good_step()
    before = [executor.store.export_page(0, page) for page in range(8)]
    breaking(step)
    with pytest.raises(InternalError) as caught:
        executor.forward(step)
    assert problem in str(caught.value)
    assert [executor.store.export_page(0, page) for page in range(8)] == before


def test_the_unbroken_step_runs() -> None:
    executor, step = good_step()
    executor.forward(step)
    assert executor.logits.shape == (7, 61)


def test_positions_that_start_below_zero_are_refused() -> None:
    executor, step = good_step()
    step.kv_lens[0] = 4
    step.positions[:5] -= 1
    with pytest.raises(InternalError, match="smaller than a request's tokens"):
        executor.forward(step)


def test_more_logits_rows_than_agreed_are_refused() -> None:
    executor, step = good_step()
    step.logit_rows = np.arange(8, dtype=np.int32)
    step.mask_row = np.full(8, -1, np.int32)
    with pytest.raises(InternalError, match="wants 8 logits rows; at most 7"):
        executor.forward(step)


def test_a_page_out_of_the_window_need_not_be_held_but_one_in_it_must() -> None:
    executor, step = good_step(is_windowed=True)
    executor.forward(step)
    # Request 0 goes on at position 5: with a window of 2 it sees positions 4 and 5, both in column 2.
    tale = Story(executor.kv_spec, [[7], [7]])
    request = tale.start([1, 2, 3, 4, 5, 6], 9)
    request.computed_len = 5
    request.pages = [step.page_tables[0][0].tolist(), [-1, -1, int(step.page_tables[1][0, 2])]]
    executor.forward(tale.step([(request, 1)]))
    request.computed_len = 5
    request.pages[1][2] = -1
    with pytest.raises(InternalError, match=r"page_tables\[1\]\[0, 2\] is -1"):
        executor.forward(tale.step([(request, 1)]))
