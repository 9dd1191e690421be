"""Whether a step fits the store it is to run on: every rule of `Step`, checked before any KV is touched.

A step that breaks a rule is a bug of whoever built it, so every failure is an `InternalError` that names the field,
the value, and the limit.
"""

from __future__ import annotations

from collections.abc import Set  # noqa: PYI025
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trivium.base.errors import InternalError, ensure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.cache.spec import KVSpec
    from trivium.schedule.step import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What an executor can take."""

    spec: KVSpec
    num_pages: tuple[int, ...]
    vocab_size: int
    model_width: int
    max_logit_rows: int
    takes_embeds: bool


def check_step(step: Step, limits: StepLimits, adapters: Set[int] = frozenset()) -> None:
    """Check every rule.

    Args:
        step: What to check.
        limits: Of the executor.
        adapters: Slots that hold an adapter.

    Raises:
        InternalError: The first rule that is broken.
    """
    _check_lengths(step)
    _check_tokens(step, limits)
    _check_positions(step)
    _check_rows(step, limits)
    _check_adapters(step, adapters)
    _check_unsupported(step, limits)
    _check_copies(step, limits)
    spec = limits.spec
    ensure(
        len(step.page_tables) == len(spec.groups),
        f"step has {len(step.page_tables)} page tables, not {len(spec.groups)}",
    )
    for group_idx in range(len(spec.groups)):
        _check_pages(step, limits, group_idx)


def _check_lengths(step: Step) -> None:
    num_tokens, num_requests, num_rows = step.num_tokens, step.num_requests, len(step.logit_rows)
    expected = {
        "token_ids": (num_tokens,),
        "positions": (num_tokens,),
        "starts": (num_requests + 1,),
        "kv_lens": (num_requests,),
        "reaches": (num_requests,),
        "adapter_slot": (num_requests,),
        "state_slot": (num_requests,),
        "logit_rows": (num_rows,),
        "mask_row": (num_rows,),
    }
    for name, shape in expected.items():
        array = getattr(step, name)
        ensure(array.dtype == np.int32 and array.shape == shape, f"step.{name} is {_kind(array)}, not int32 {shape}")
    counts = np.diff(step.starts)
    ensure(num_requests > 0 and (counts > 0).all(), "step has no request, or a request without tokens")
    is_whole = step.starts[0] == 0 and step.starts[-1] == num_tokens
    ensure(is_whole, f"step.starts covers {step.starts[0]}..{step.starts[-1]} of {num_tokens} tokens")


def _kind(array: NDArray[np.generic]) -> str:
    return f"{array.dtype} {array.shape}"


def _check_tokens(step: Step, limits: StepLimits) -> None:
    low, high = step.token_ids.min(), step.token_ids.max()
    ensure(low >= 0 and high < limits.vocab_size, f"step.token_ids spans {low}..{high}, not 0..{limits.vocab_size - 1}")


def _check_positions(step: Step) -> None:
    # request      | starts[b] ........ starts[b + 1] |
    # positions    | kv_len - count ..... kv_len - 1  |      position of token t = kv_len - starts[b + 1] + t
    last = np.repeat(step.kv_lens - step.starts[1:], np.diff(step.starts))
    expected = last + np.arange(step.num_tokens, dtype=np.int32)
    wrong = np.flatnonzero(step.positions != expected)
    if wrong.size:
        token = wrong[0]
        raise InternalError(f"step.positions[{token}] is {step.positions[token]}; kv_lens says {expected[token]}")
    ensure(step.positions[step.starts[:-1]].min() >= 0, "step.kv_lens is smaller than a request's tokens")
    ensure((step.kv_lens <= step.reaches).all(), "step.kv_lens exceeds step.reaches")


def _check_rows(step: Step, limits: StepLimits) -> None:
    rows = step.logit_rows
    ensure(len(rows) <= limits.max_logit_rows, f"step wants {len(rows)} logits rows; at most {limits.max_logit_rows}")
    if len(rows):
        is_ascending = (np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < step.num_tokens
        ensure(is_ascending, f"step.logit_rows {rows.tolist()} does not ascend within {step.num_tokens} tokens")


def _check_adapters(step: Step, adapters: Set[int]) -> None:
    for request, slot in enumerate(step.adapter_slot.tolist()):
        ensure(slot == -1 or slot in adapters, f"step.adapter_slot[{request}] is {slot}: no adapter is loaded there")


def _check_unsupported(step: Step, limits: StepLimits) -> None:
    ensure((step.state_slot == -1).all(), "step has recurrent state; this model has none")
    if step.embeds is not None:
        ensure(limits.takes_embeds, "step has embeds; this model takes none")
        shape = (step.num_tokens, limits.model_width)
        ensure(step.embeds.shape == shape, f"step.embeds is {_kind(step.embeds)}, not float32 {shape}")


def _check_copies(step: Step, limits: StepLimits) -> None:
    ensure(step.copies.ndim == 2 and step.copies.shape[1] == 3, f"step.copies is {_kind(step.copies)}, not [C, 3]")  # noqa: PLR2004
    for group_idx, source, target in step.copies.tolist():
        is_group = 0 <= group_idx < len(limits.num_pages)
        limit = limits.num_pages[group_idx] if is_group else 0
        is_page = 0 <= source < limit and 0 <= target < limit and source != target
        ensure(is_page, f"step copies page {source} to {target} of group {group_idx}, which has {limit} pages")


def _check_pages(step: Step, limits: StepLimits, group_idx: int) -> None:
    spec, table = limits.spec, step.page_tables[group_idx]
    where = f"step.page_tables[{group_idx}]"
    is_table = table.dtype == np.int32 and table.ndim == 2 and len(table) == step.num_requests  # noqa: PLR2004
    ensure(is_table, f"{where} is {_kind(table)}, not int32 [{step.num_requests}, pages]")
    needed_end = (step.kv_lens - 1) // spec.page_len + 1
    ensure(
        table.shape[1] >= needed_end.max(),
        f"{where} has {table.shape[1]} pages a request; {needed_end.max()} are needed",
    )
    window = spec.groups[group_idx].window
    first_seen = np.zeros_like(needed_end)
    if window is not None:
        first_seen = np.maximum(step.positions[step.starts[:-1]] - window + 1, 0) // spec.page_len
    # page         0 ....... first seen ....... needed_end ....... table's width
    # entry        |  any, or -1   |  a page we have  |  any, or -1  |
    columns = np.arange(table.shape[1])
    is_needed = (columns >= first_seen[:, None]) & (columns < needed_end[:, None])
    is_bad = is_needed & ((table < 0) | (table >= limits.num_pages[group_idx]))
    if is_bad.any():
        request, column = np.argwhere(is_bad)[0]
        found, limit = table[request, column], limits.num_pages[group_idx]
        raise InternalError(f"{where}[{request}, {column}] is {found}; the group has {limit} pages")
    slots = token_slots(step, group_idx, spec.page_len)
    ensure(len(np.unique(slots)) == len(slots), f"{where} has two tokens of the step write one slot")


def token_slots(step: Step, group_idx: int, page_len: int) -> NDArray[np.int32]:
    """Return the slot of each token of the step [T]: page * page_len + offset."""
    request_of_token = np.repeat(np.arange(step.num_requests), np.diff(step.starts))
    pages = step.page_tables[group_idx][request_of_token, step.positions // page_len]
    slots: NDArray[np.int32] = pages * np.int32(page_len) + step.positions % np.int32(page_len)
    return slots
