"""From wanted rows to outcomes and deltas.

::

    rows of an entry     scored  scored  scored  draw
    position p           14      15      16      17        entry.start = 14, num_tokens = 4
    scores / draws       15      16      17      18        SampleRow.position
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trivium.base.errors import InternalError, TriviumError
from trivium.base.ids import FinishReason, TokenId
from trivium.engine.messages import Delta
from trivium.sampling.batch import SampleRow
from trivium.schedule.decision import Outcome

if TYPE_CHECKING:
    from trivium.engine.admit import Answer
    from trivium.sampling.batch import Sampled, TokenLogprobs
    from trivium.schedule.decision import Entry, ScheduledStep


def sample_rows(scheduled: ScheduledStep, answers: Sequence[Answer]) -> list[SampleRow]:
    """Describe every wanted row of a step to the sampler, in the order of `logit_rows`.

    Args:
        scheduled: The step.
        answers: One per entry.
    """
    positions = scheduled.step.positions[scheduled.step.logit_rows].tolist()
    rows: list[SampleRow] = []
    for entry, answer in zip(scheduled.entries, answers, strict=True):
        last = entry.first_row + entry.num_rows - 1
        rows.extend(
            _row(answer, positions[idx] + 1, is_draw=entry.draws and idx == last)
            for idx in range(entry.first_row, last + 1)
        )
    return rows


def _row(answer: Answer, position: int, *, is_draw: bool) -> SampleRow:
    request, params = answer.request, answer.request.params
    return SampleRow(
        params=params,
        choice=request.choice,
        position=position,
        tokens=request.tokens,
        prompt_len=request.prompt_len,
        held_back_ids=answer.automaton.held_back_ids if is_draw else (),
        bad_word_ids=answer.bad_word_ids,
        target=None if is_draw else request.tokens[position],
        num_logprobs=params.logprobs if is_draw else params.prompt_logprobs,
    )


def read_entry(
    entry: Entry, answer: Answer, rows: Sequence[SampleRow], sampled: Sampled
) -> tuple[Outcome, Delta | None]:
    """Take what the sampler said about one entry: keep prompt logprobs, let the automaton read a drawn token.

    Returns:
        What the scheduler records, and the news for the client (`None` while a prompt is under way).
    """
    request = entry.request
    end_row = entry.first_row + entry.num_rows
    for idx in range(entry.first_row, end_row):
        if idx in sampled.errors:
            return Outcome((), FinishReason.ERROR), failed(answer, InternalError(sampled.errors[idx]))
        if rows[idx].target is not None:
            answer.prompt_logprobs[rows[idx].position] = sampled.logprobs[idx]
    if entry.draws:
        return _draw(answer, end_row - 1, sampled)
    is_scored_only = request.limit_len == request.prompt_len
    if is_scored_only and entry.start + entry.num_tokens == request.prompt_len:
        return Outcome((), FinishReason.LENGTH), delta(answer, finish=FinishReason.LENGTH)
    return Outcome((), None), None


def _draw(answer: Answer, row: int, sampled: Sampled) -> tuple[Outcome, Delta]:
    request = answer.request
    token = TokenId(int(sampled.token_ids[row]))
    progress = answer.automaton.advance(token)
    text, finish = progress.text, progress.finish
    if finish is None and request.target_len + 1 >= request.end_len:
        finish = FinishReason.LENGTH
        text += answer.automaton.finish(finish)
    if sampled.chosen_logprobs is not None:
        answer.cumulative_logprob += float(sampled.chosen_logprobs[row])
    drawn = sampled.logprobs[row]
    news = delta(
        answer,
        token_ids=[token],
        text=text,
        logprobs=None if drawn is None else [drawn],
        finish=finish,
        stop_reason=progress.stop_reason,
    )
    return Outcome((token,), finish), news


def delta(
    answer: Answer,
    *,
    token_ids: Sequence[int] = (),
    text: str = "",
    logprobs: list[TokenLogprobs] | None = None,
    finish: FinishReason | None = None,
    stop_reason: int | str | None = None,
) -> Delta:
    """Write the news of an answer; its first one after the prompt carries the prompt's logprobs."""
    request = answer.request
    return Delta(
        request_id=answer.user_id,
        choice=request.choice,
        first_token=request.output_len,
        token_ids=list(token_ids),
        text=text,
        logprobs=logprobs,
        prompt_logprobs=_take_prompt_logprobs(answer),
        cached_len=request.cached_len,
        finish_reason=None if finish is None else finish.value,
        stop_reason=stop_reason,
        cumulative_logprob=answer.cumulative_logprob,
    )


def accepted(answer: Answer) -> Delta:
    """Write the empty delta that says a request is queued."""
    return Delta(request_id=answer.user_id, choice=0, first_token=answer.request.output_len, token_ids=[], text="")


def failed(answer: Answer, error: TriviumError) -> Delta:
    """Write the last delta of an answer that ends with an error."""
    return Delta(
        request_id=answer.user_id,
        choice=answer.request.choice,
        first_token=answer.request.output_len,
        token_ids=[],
        text="",
        cached_len=answer.request.cached_len,
        finish_reason=FinishReason.ERROR.value,
        error=str(error),
        error_code=error.code,
    )


def _take_prompt_logprobs(answer: Answer) -> list[TokenLogprobs | None] | None:
    params = answer.request.params
    if params.prompt_logprobs is None or answer.is_prompt_reported:
        return None
    answer.is_prompt_reported = True
    start = params.prompt_logprob_start
    return [answer.prompt_logprobs.get(position) for position in range(start, answer.request.prompt_len)]
