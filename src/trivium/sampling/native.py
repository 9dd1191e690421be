"""The sampling contract in one native call for all rows of a step.

`sample` takes what `pipeline.sample` takes and answers the same, to the last bit, some ten times faster: it packs every
row's parameters into one buffer of records, and token lists only for the rows that have penalties, biases or banned
tokens. Without native kernels it is `pipeline.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from trivium.base.errors import ensure
from trivium.base.ids import TokenId
from trivium.kernels import sample as kernel
from trivium.sampling import pipeline
from trivium.sampling.batch import Sampled, TokenLogprobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivium.config.sampling import SamplingParams
    from trivium.sampling.batch import SampleRow

_POSITION = 68 // 4
"""Place of a row's position in its record, counted in words of 32 bits; see `kernels.sample.ROW`."""
_ROW_WORDS = kernel.ROW.size // 4

_ERRORS = {
    kernel.NAN: "the model's greatest logit is nan",
    kernel.INFINITE: "the model's greatest logit is inf",
    kernel.MINUS_INFINITE: "the model's greatest logit is -inf",
    kernel.FORBIDDEN: "mask, bias, bad words and min_tokens together forbid every token",
}


def sample(
    logits: NDArray[np.float32],
    rows: Sequence[SampleRow],
    masks: NDArray[np.uint32] | None = None,
    mask_row: NDArray[np.int32] | None = None,
    *,
    isa: str | None = None,
) -> Sampled:
    """Draw, or score, one token per row.

    Args:
        logits: [R, V] float32, dense in V; rows may be any distance apart, as in an executor's arena. Not changed.
        rows: [R] what is wanted of each row.
        masks: [masks, ceil(V / 32)] allowed tokens, bit t % 32 of word t // 32.
        mask_row: [R] row of `masks`, or -1 for none.
        isa: Instruction set to run, for tests; the strongest allowed when `None`.

    Raises:
        InternalError: The arguments do not fit each other. What is wrong inside one row is in `Sampled.errors`.
    """
    return Sampler().sample(logits, rows, masks, mask_row, isa=isa)


class Sampler:
    """Samples step after step and keeps its arrays: a step like the one before allocates none.

    Invariants:
        An answer does not depend on what was sampled before.
    """

    def __init__(self) -> None:
        self._batch = _Batch()
        self._space = kernel.SampleSpace()

    def sample(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[SampleRow],
        masks: NDArray[np.uint32] | None = None,
        mask_row: NDArray[np.int32] | None = None,
        *,
        isa: str | None = None,
    ) -> Sampled:
        """Draw, or score, one token per row; see `sample`. The answer's arrays are valid until the next call."""
        ensure(len(rows) == len(logits), f"{len(rows)} rows for logits of shape {logits.shape}")
        if not kernel.is_available():
            return pipeline.sample(logits, rows, masks, mask_row)
        batch = self._batch
        batch.pack(rows, None if masks is None else mask_row)
        outputs = kernel.sample(
            logits,
            batch.records,
            batch.lists,
            masks,
            max_tops=batch.max_tops,
            wants_chosen=batch.wants_chosen,
            isa=isa,
            space=self._space,
        )
        sampled = Sampled(token_ids=outputs.token_ids, logprobs=[None] * len(rows), chosen_logprobs=outputs.chosen)
        if outputs.num_failed:
            codes = outputs.errors.tolist()
            sampled.errors = {index: _ERRORS[code] for index, code in enumerate(codes) if code}
        if outputs.reports is not None:
            _fill_logprobs(sampled, rows, outputs.reports)
        return sampled


class _Batch:
    """All rows as one buffer of records, and the lists of those that have any.

    ::

        records   [ row 0: 96 bytes .. position .. | row 1 .. position .. | ... ]
                                        |                     |
        a step with the same rows writes these alone: rows move on in place (see `SampleRow`)
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._rows: tuple[SampleRow, ...] = ()
        """A copy: the caller's own list may hold other rows by the next step."""
        self._is_plain = False
        """Whether the rows packed last have neither lists nor masks, so that only positions change."""
        self.records = memoryview(self._buffer)
        self._words = self.records.cast("I")
        self.lists: list[kernel.RowLists] = []
        self.max_tops: int | None = None
        self.wants_chosen = False

    def pack(self, rows: Sequence[SampleRow], mask_row: NDArray[np.int32] | None) -> None:
        """Describe the rows of a step."""
        if mask_row is None and self._is_plain and len(rows) == len(self._rows) and self._move_on(rows):
            return
        self._make_room(len(rows))
        self._rows, self.lists = tuple(rows), []
        self._is_plain, self.max_tops, self.wants_chosen = False, None, False
        self._write(rows, repeat(-1) if mask_row is None else mask_row.tolist())
        self._is_plain = mask_row is None and not self.lists

    def _move_on(self, rows: Sequence[SampleRow]) -> bool:
        """Write the positions of rows that are those of the last step; return whether they are."""
        words, place = self._words, _POSITION
        for row, known in zip(rows, self._rows, strict=True):
            if row is not known or row.held_back_ids:
                return False
            words[place] = row.position
            place += _ROW_WORDS
        return True

    def _make_room(self, num_rows: int) -> None:
        num_bytes = kernel.ROW.size * num_rows
        if num_bytes > len(self._buffer):
            self._buffer = bytearray(num_bytes)
        if num_bytes != len(self.records):
            self.records = memoryview(self._buffer)[:num_bytes]
            self._words = self.records.cast("I")

    def _write(self, rows: Sequence[SampleRow], mask_rows: Sequence[int] | repeat[int]) -> None:
        # One pass with few calls: this runs in every step that is not like the one before, for every row.
        pack_into, records = kernel.ROW.pack_into, self.records
        offset = 0
        for index, (row, mask) in enumerate(zip(rows, mask_rows, strict=False)):
            params = row.params
            seed, target, num_logprobs = params.seed, row.target, row.num_logprobs
            if seed is None:
                _check_no_seed(row)
                seed = 0
            wants = 0
            if params.best_of is not None:
                wants = kernel.WANTS_CHOSEN
                self.wants_chosen = True
            if num_logprobs is None:
                num_logprobs = -1
            else:
                self.max_tops = max(num_logprobs, self.max_tops or 0)
                if params.logprobs_mode == "processed":
                    wants |= kernel.WANTS_PROCESSED
            repetition, presence = params.repetition_penalty, params.presence_penalty
            frequency = params.frequency_penalty
            has_penalty = repetition != 1.0 or presence != 0.0 or frequency != 0.0
            is_edited = has_penalty or params.logit_bias or row.bad_word_ids or row.held_back_ids
            if is_edited and target is None:  # scores are of the model's own distribution
                self.lists.append(_lists_of(index, row, params))
            pack_into(
                records,
                offset,
                params.temperature,
                params.top_p,
                params.min_p,
                params.typical_p,
                repetition,
                presence,
                frequency,
                seed,
                row.choice,
                row.position,
                row.prompt_len,
                params.top_k,
                -1 if target is None else target,
                num_logprobs,
                mask,
                wants,
            )
            offset += kernel.ROW.size


def _check_no_seed(row: SampleRow) -> None:
    is_drawn = row.target is None and not row.params.is_greedy
    ensure(not is_drawn, "a row is drawn at random but its seed was never chosen")


def _lists_of(index: int, row: SampleRow, params: SamplingParams) -> kernel.RowLists:
    """Collect the lists of a row, with as few of its known tokens as its parameters look at."""
    start = row.position
    if params.repetition_penalty != 1.0:
        start = 0
    elif params.presence_penalty or params.frequency_penalty:
        start = row.prompt_len
    if row.bad_word_ids and start > row.prompt_len:
        longest = max(map(len, row.bad_word_ids))
        start = min(start, max(row.prompt_len, row.position - longest + 1))
    start = min(start, row.position)  # a scored token stands in the prompt: no output precedes it
    return (index, row.tokens, start, row.position, row.bad_word_ids, row.held_back_ids, params.logit_bias)


def _fill_logprobs(sampled: Sampled, rows: Sequence[SampleRow], reports: kernel.Reports) -> None:
    token_ids = sampled.token_ids.tolist()
    logprobs, ranks, num_tops = reports.logprobs.tolist(), reports.ranks.tolist(), reports.num_tops.tolist()
    top_ids, top_logprobs = reports.top_ids.tolist(), reports.top_logprobs.tolist()
    for index, row in enumerate(rows):
        if row.num_logprobs is None or index in sampled.errors:
            continue
        count = num_tops[index]
        sampled.logprobs[index] = TokenLogprobs(
            token_id=TokenId(token_ids[index]),
            logprob=logprobs[index],
            rank=ranks[index],
            top_ids=tuple(top_ids[index][:count]),
            top_logprobs=tuple(top_logprobs[index][:count]),
        )
