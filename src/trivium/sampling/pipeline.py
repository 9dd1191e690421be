"""From logits to tokens: the sampling contract, which every implementation follows to the bit.

A row is sampled by these stages, in this order. float64 throughout, every operation rounded on its own (no fused
multiply-add); float32 logits convert exactly. `rank order` is: greater edited logit first, then lower id.

1. logit bias      y[t] = x[t] + bias[t]
2. bad words       y[last token of a spelling] = -inf when its other tokens end the output
3. min tokens      y[t] = -inf for held-back end tokens
4. penalties       repetition (tokens of prompt and output): y > 0 ? y / r : y * r;
                   then (tokens of the output) y = (y - frequency * count) - presence
5. grammar mask    only tokens whose bit is set stay, bit t % 32 of word t // 32; tokens at y = -inf drop out
6. temperature     below 1e-5: the answer is the first token in rank order, and nothing below happens.
                   Else d = (y - greatest y) / temperature and w = `softmax.weights_of`(d)
7. top-k           the first k in rank order stay; 0 and -1: all
8. top-p           S = sum of w, ids ascending; going down rank order, a token stays while the sum of w of those
                   before it is below p * S; 1: all
9. min-p           tokens with w >= p stay (the most likely one weighs 1)
10. typical        S as above over those left; l = d - log(S); H = -(sum of (w / S) * l, ids ascending, terms with
                   w = 0 left out); going up |l + H|, lower id first, a token stays while the sum of w of those
                   before it is below p * S; 1: all
11. draw           c = running sum of the w left, ids ascending; u = `philox.uniforms`; the answer is the first token
                   with c > u * (last c), and the last token with w > 0 should rounding leave none

12. logprobs       min(d - log(S), 0) with d, w and S as above. Raw: over all tokens, d = x - greatest x, without any of
                   the stages. Processed: over the w left after 10; below 1e-5 only the answer is left, at 0

Sums run left to right from the first term. log is the C library's, of one double. A row's answer depends on nothing
but the row. A row with a NaN or +inf logit, or in which every token is forbidden, has no answer: it is reported in
`Sampled.errors`, and the other rows are not touched by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trivium.base.errors import ensure
from trivium.base.ids import TokenId
from trivium.sampling import edits, filters
from trivium.sampling.batch import Sampled, TokenLogprobs
from trivium.sampling.candidates import Candidates
from trivium.sampling.draw import draw
from trivium.sampling.logprobs import certain, describe_token, token_logprob
from trivium.sampling.philox import uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.config.sampling import SamplingParams
    from trivium.sampling.batch import SampleRow

FAILED = -1
"""What stands for the token of a row that is in `Sampled.errors`."""


class Edit(NamedTuple):
    """A stage that changes single logits."""

    name: str
    is_wanted: Callable[[SampleRow], object]
    apply: Callable[[NDArray[np.float64], SampleRow], None]


class Filter(NamedTuple):
    """A stage that drops candidates."""

    name: str
    is_wanted: Callable[[SamplingParams], bool]
    apply: Callable[[Candidates, SamplingParams], None]


EDITS: tuple[Edit, ...] = (
    Edit("logit bias", lambda row: row.params.logit_bias, edits.add_bias),
    Edit("bad words", lambda row: row.bad_word_ids, edits.ban_words),
    Edit("min tokens", lambda row: row.held_back_ids, edits.hold_back),
    Edit("penalties", lambda row: _has_penalty(row.params), edits.penalise),
)
# between the two tables: grammar mask, temperature
FILTERS: tuple[Filter, ...] = (
    Filter("top-k", lambda params: params.top_k > 0, filters.keep_top_k),
    Filter("top-p", lambda params: params.top_p < 1.0, filters.keep_top_p),
    Filter("min-p", lambda params: params.min_p > 0.0, filters.keep_min_p),
    Filter("typical", lambda params: params.typical_p < 1.0, filters.keep_typical),
)


def sample(
    logits: NDArray[np.float32],
    rows: Sequence[SampleRow],
    masks: NDArray[np.uint32] | None = None,
    mask_row: NDArray[np.int32] | None = None,
) -> Sampled:
    """Draw, or score, one token per row.

    Args:
        logits: [R, V]; not changed.
        rows: [R] what is wanted of each row.
        masks: [masks, ceil(V / 32)] allowed tokens, bit t % 32 of word t // 32.
        mask_row: [R] row of `masks`, or -1 for none.

    Raises:
        InternalError: The arguments do not fit each other. What is wrong inside one row is in `Sampled.errors`.
    """
    ensure(len(rows) == len(logits), f"{len(rows)} rows for logits of shape {logits.shape}")
    sampled = Sampled(token_ids=np.full(len(rows), FAILED, np.int32), logprobs=[None] * len(rows))
    if any(row.params.best_of is not None for row in rows):
        sampled.chosen_logprobs = np.zeros(len(rows))
    if not rows:
        return sampled
    favourites = logits.argmax(axis=1)
    randoms = _randoms_of(rows)
    for index, row in enumerate(rows):
        allowed = _allowed(masks, mask_row, index, logits.shape[1])
        sampler = _RowSampler(logits[index], row, int(favourites[index]))
        try:
            sampler.run(allowed, randoms.get(index, 0.0))
        except _NoAnswer as error:
            sampled.errors[index] = str(error)
            continue
        sampled.token_ids[index] = sampler.token_id
        sampled.logprobs[index] = sampler.report
        if sampled.chosen_logprobs is not None and row.params.best_of is not None:
            sampled.chosen_logprobs[index] = token_logprob(sampler.raw, sampler.token_id)
    return sampled


class _NoAnswer(Exception):  # noqa: N818 -- never leaves this module
    """A row from which nothing can be drawn, and why."""


class _RowSampler:
    """Takes one row through the stages."""

    def __init__(self, logits: NDArray[np.float32], row: SampleRow, favourite: int) -> None:
        self._logits = logits
        self._row = row
        self._favourite = favourite
        self._raw: Candidates | None = None
        self.token_id = TokenId(FAILED)
        self.report: TokenLogprobs | None = None

    @property
    def raw(self) -> Candidates:
        """The model's own distribution."""
        if self._raw is None:
            self._raw = Candidates(None, self._logits, float(self._logits[self._favourite]))
        return self._raw

    def run(self, allowed: NDArray[np.int64] | None, random: float) -> None:
        """Fill `token_id` and `report`.

        Raises:
            _NoAnswer: The row has no answer.
        """
        greatest = self._logits[self._favourite]
        if not math.isfinite(greatest):
            raise _NoAnswer(f"the model's greatest logit is {greatest}")
        row = self._row
        if row.target is not None:
            self.token_id = row.target
            self._report_raw()
            return
        edits_wanted = [edit for edit in EDITS if edit.is_wanted(row)]
        if row.params.is_greedy and allowed is None and not edits_wanted:
            self.token_id = TokenId(self._favourite)
            self._report(None, self._favourite)
            return
        candidates = self._candidates(edits_wanted, allowed)
        place = self._choose(candidates, random)
        self.token_id = TokenId(candidates.id_at(place))
        self._report(candidates, place)

    def _candidates(self, edits_wanted: Sequence[Edit], allowed: NDArray[np.int64] | None) -> Candidates:
        values: NDArray[np.float32] | NDArray[np.float64] = self._logits
        if edits_wanted:
            edited = values.astype(np.float64)
            for edit in edits_wanted:
                edit.apply(edited, self._row)
            values = edited
        ids = allowed
        if ids is not None:
            values = values[ids]
        possible = values > -np.inf
        if not possible.all():
            places = np.flatnonzero(possible)
            ids = places if ids is None else ids[places]
            values = values[places]
        if not len(values):
            raise _NoAnswer("mask, bias, bad words and min_tokens together forbid every token")
        return Candidates(ids, values, float(values.max()))

    def _choose(self, candidates: Candidates, random: float) -> int:
        params = self._row.params
        if params.is_greedy:
            return int(candidates.logits.argmax())
        candidates.temperature = params.temperature
        if candidates.logits is self._logits and params.temperature == 1.0 and self._wants_raw:
            candidates.know(self.raw.softmax)
        for stage in FILTERS:
            if stage.is_wanted(params):
                stage.apply(candidates, params)
        return draw(candidates, random)

    @property
    def _wants_raw(self) -> bool:
        wants_report = self._row.num_logprobs is not None and self._row.params.logprobs_mode != "processed"
        return wants_report or self._row.params.best_of is not None

    def _report(self, candidates: Candidates | None, place: int) -> None:
        if self._row.num_logprobs is None:
            return
        if self._row.params.logprobs_mode != "processed":
            self._report_raw()
        elif candidates is None or self._row.params.is_greedy:
            self.report = certain(self.token_id, self._row.num_logprobs)
        else:
            self.report = describe_token(candidates, place, self._row.num_logprobs)

    def _report_raw(self) -> None:
        if self._row.num_logprobs is not None:
            self.report = describe_token(self.raw, self.token_id, self._row.num_logprobs)


def _randoms_of(rows: Sequence[SampleRow]) -> dict[int, float]:
    drawn = [index for index, row in enumerate(rows) if row.target is None and not row.params.is_greedy]
    if not drawn:
        return {}
    seeds = [rows[index].params.seed for index in drawn]
    ensure(None not in seeds, "a row is drawn at random but its seed was never chosen")
    numbers = uniforms(
        [seed for seed in seeds if seed is not None],
        [rows[index].choice for index in drawn],
        [rows[index].position for index in drawn],
    )
    return dict(zip(drawn, numbers.tolist(), strict=True))


def _allowed(
    masks: NDArray[np.uint32] | None, mask_row: NDArray[np.int32] | None, index: int, vocab_size: int
) -> NDArray[np.int64] | None:
    if masks is None or mask_row is None or mask_row[index] < 0:
        return None
    words = np.ascontiguousarray(masks[mask_row[index]], "<u4")
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), count=vocab_size, bitorder="little"))


def _has_penalty(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
