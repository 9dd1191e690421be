"""Draws and scores of all rows of a step in one native call: flat records in, flat arrays out.

What a row asks is one record of `ROW` (drawn in csrc/ops/sample/sample.h); `trivium.sampling.native` makes them from
`SampleRow`s. The NumPy stand-in is one floor up, `trivium.sampling.pipeline`, which defines the results to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from trivium.base.errors import InternalError
from trivium.kernels import native

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROW = Struct("=7dQ3I4iI")
"""One row: temperature, top_p, min_p, typical_p, repetition, presence and frequency penalty; seed; choice, position,
prompt_len; top_k, target, num_logprobs, mask_row (-1 each for none); wants."""
WANTS_PROCESSED = 1
"""Bit of `wants`: logprobs describe the distribution drawn from, not the model's own."""
WANTS_CHOSEN = 2
"""Bit of `wants`: the raw logprob of the token goes to `chosen`."""

NAN, INFINITE, MINUS_INFINITE, FORBIDDEN = 1, 2, 3, 4
"""Values of `SampleOutputs.errors`: a logit is NaN, or +inf; all logits are -inf; no token is left."""

RowLists: TypeAlias = tuple[int, Sequence[int], int, int, Sequence[Sequence[int]], Sequence[int], Mapping[int, float]]
"""Lists of a row: its index, its known tokens, of which [start, end) are looked at, start, end; spellings of bad words;
held-back tokens; biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Logprobs of the rows that asked for some; other rows hold nothing of meaning."""

    logprobs: NDArray[np.float64]
    """[R]"""
    ranks: NDArray[np.int64]
    """[R] from 1."""
    num_tops: NDArray[np.int32]
    """[R] alternatives of each row."""
    top_ids: NDArray[np.int32]
    """[R, K]"""
    top_logprobs: NDArray[np.float64]
    """[R, K]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutputs:
    """What one call gives."""

    token_ids: NDArray[np.int32]
    """[R]; -1 for rows with an error."""
    errors: NDArray[np.int32]
    """[R]; 0 for rows without."""
    num_failed: int
    """Rows with an error."""
    chosen: NDArray[np.float64] | None
    """[R] raw logprobs, 0 where not wanted; `None` when not asked for."""
    reports: Reports | None
    """`None` when not asked for."""


class SampleSpace:
    """Where answers are written: arrays that are kept, and grow to the most rows that were ever asked for."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._token_ids, self._errors = np.empty(0, np.int32), np.empty(0, np.int32)
        self._chosen = np.empty(0)
        self._reports: Reports | None = None
        self.token_ids, self.errors, self.chosen = self._token_ids, self._errors, self._chosen

    def size_to(self, num_rows: int) -> None:
        """Make `token_ids`, `errors` and `chosen` so many rows long; what they held is void."""
        if num_rows == self._num_rows:
            return
        if num_rows > len(self._token_ids):
            self._token_ids, self._errors = np.empty(num_rows, np.int32), np.empty(num_rows, np.int32)
            self._chosen = np.empty(num_rows)
        self._num_rows = num_rows
        self.token_ids, self.errors = self._token_ids[:num_rows], self._errors[:num_rows]
        self.chosen = self._chosen[:num_rows]

    def reports(self, max_tops: int) -> Reports:
        """Return room for reports of the present rows with so many alternatives each."""
        known = self._reports
        if known is None or known.top_ids.shape != (self._num_rows, max_tops):
            known = self._reports = _reports(self._num_rows, max_tops)
        return known


def is_available() -> bool:
    """Return whether there are native kernels."""
    return native.load() is not None


def sample(
    logits: NDArray[np.float32],
    records: bytearray | memoryview,
    lists: list[RowLists],
    masks: NDArray[np.uint32] | None,
    *,
    max_tops: int | None = None,
    wants_chosen: bool = False,
    isa: str | None = None,
    space: SampleSpace | None = None,
) -> SampleOutputs:
    """Draw or score one token per row.

    Args:
        logits: [R, V] float32, dense in V; rows may be any distance apart. Not changed.
        records: R records of `ROW`.
        lists: Of the rows that have any; most have none.
        masks: [masks, ceil(V / 32)] allowed tokens, dense in the last axis; records name their row.
        max_tops: Most alternatives that a record asks for; `None` when none asks for logprobs.
        wants_chosen: Whether a record has `WANTS_CHOSEN`.
        isa: Instruction set to run, for tests; the strongest allowed when `None`.
        space: Holds the answer, until it is used again; arrays of its own when `None`.

    Raises:
        InternalError: The arguments do not fit each other, a token id is outside the vocabulary, or there are no
            native kernels.
    """
    module = native.load()
    if module is None:
        raise InternalError("sample: there are no native kernels; use trivium.sampling.pipeline")
    space = SampleSpace() if space is None else space
    space.size_to(len(logits))
    token_ids, errors = space.token_ids, space.errors
    chosen = space.chosen if wants_chosen else None
    reports = None if max_tops is None else space.reports(max_tops)
    arrays = None
    if reports is not None:
        arrays = (reports.logprobs, reports.ranks, reports.num_tops, reports.top_ids, reports.top_logprobs)
    try:
        num_failed = module.sample(logits, records, lists, masks, token_ids, errors, chosen, arrays, isa)
    except (TypeError, ValueError) as error:
        raise InternalError(str(error)) from error
    return SampleOutputs(token_ids=token_ids, errors=errors, num_failed=num_failed, chosen=chosen, reports=reports)


def _reports(num_rows: int, max_tops: int) -> Reports:
    return Reports(
        logprobs=np.empty(num_rows),
        ranks=np.empty(num_rows, np.int64),
        num_tops=np.empty(num_rows, np.int32),
        top_ids=np.empty((num_rows, max_tops), np.int32),
        top_logprobs=np.empty((num_rows, max_tops)),
    )
