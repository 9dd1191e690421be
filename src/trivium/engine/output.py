"""From wanted rows to outcomes and deltas.

::

    rows of an entry     scored  scored  scored  draw
    position p           14      15      16      17        entry.start = 14, num_tokens = 4
    scores / draws       15      16      17      18        SampleRow.position
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trivium.base.errors import InternalError, TriviumError
from trivium.base.ids import FinishReason, TokenId
from trivium.engine.messages import Delta
from trivium.sampling.batch import SampleRow
from trivium.schedule.decision import Outcome

if TYPE_CHECKING:
    from trivium.engine.admit import Answer
    from trivium.sampling.batch import Sampled, TokenLogprobs
    from trivium.schedule.decision import Entry

_GOES_ON = Outcome()


def sample_rows(entries: Sequence[Entry], answers: Sequence[Answer]) -> list[SampleRow]:
    """Describe every wanted row of a step to the sampler, in the order of `logit_rows`.

    Args:
        entries: Those of the step.
        answers: One per entry.

    Effects:
        The row from which an answer draws is the same record in every step, moved on.
    """
    rows: list[SampleRow] = []
    for entry, answer in zip(entries, answers, strict=True):
        if entry.num_rows > entry.draws:
            rows.extend(_scored_rows(entry, answer))
        if entry.draws:
            row = answer.draw_row
            row.position = entry.start + entry.num_tokens
            row.held_back_ids = answer.automaton.held_back_ids
            rows.append(row)
    return rows


def _scored_rows(entry: Entry, answer: Answer) -> Iterator[SampleRow]:
    request = answer.request
    for position in range(entry.scored_start + 1, entry.scored_start + entry.num_scored + 1):
        yield SampleRow(
            params=request.params,
            choice=request.choice,
            position=position,
            tokens=request.tokens,
            prompt_len=request.prompt_len,
            bad_word_ids=answer.draw_row.bad_word_ids,
            target=request.tokens[position],
            num_logprobs=request.params.prompt_logprobs,
        )


def read_step(
    entries: Sequence[Entry], answers: Sequence[Answer], rows: Sequence[SampleRow], sampled: Sampled
) -> tuple[list[Outcome], list[Delta]]:
    """Take what the sampler said to the answers: prompt logprobs are kept, an automaton reads each drawn token.

    Args:
        entries: Those of the step.
        answers: One per entry.
        rows: What was asked; see `sample_rows`.
        sampled: What was answered.

    Returns:
        What the scheduler records, one per entry; and the news for the clients, of those that have any.
    """
    tokens: list[TokenId] = sampled.token_ids.tolist()
    outcomes: list[Outcome] = []
    news: list[Delta] = []
    for entry, answer in zip(entries, answers, strict=True):
        if sampled.errors and (error := _first_error(entry, sampled.errors)) is not None:
            outcomes.append(Outcome((), FinishReason.ERROR))
            news.append(failed(answer, error))
            continue
        if entry.num_rows > entry.draws:
            for row in range(entry.first_row, entry.first_row + entry.num_scored):
                answer.prompt_logprobs[rows[row].position] = sampled.logprobs[row]
        request = answer.request
        if entry.draws:
            row = entry.first_row + entry.num_rows - 1
            if sampled.chosen_logprobs is not None:
                answer.cumulative_logprob += float(sampled.chosen_logprobs[row])
            outcome, drawn = _read_token(answer, tokens[row], sampled.logprobs[row])
            outcomes.append(outcome)
            news.append(drawn)
        elif request.limit_len == request.prompt_len == entry.start + entry.num_tokens:
            outcomes.append(Outcome((), FinishReason.LENGTH))
            news.append(_scored(answer))
        else:
            outcomes.append(_GOES_ON)
    return outcomes, news


def _first_error(entry: Entry, errors: Mapping[int, str]) -> InternalError | None:
    rows = range(entry.first_row, entry.first_row + entry.num_rows)
    return next((InternalError(errors[row]) for row in rows if row in errors), None)


def _read_token(answer: Answer, token: TokenId, logprobs: TokenLogprobs | None) -> tuple[Outcome, Delta]:
    request = answer.request
    progress = answer.automaton.advance(token)
    text, finish = progress.text, progress.finish
    num_tokens = len(request.tokens)
    if finish is None and num_tokens + 1 >= request.end_len:
        finish = FinishReason.LENGTH
        text += answer.automaton.finish(finish)
    return Outcome((token,), finish), Delta(
        request_id=answer.user_id,
        choice=request.choice,
        first_token=num_tokens - request.prompt_len,
        token_ids=[token],
        text=text,
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=None if answer.is_prompt_reported else _take_prompt_logprobs(answer),
        cached_len=_cached_len(answer),
        finish_reason=None if finish is None else finish.value,
        stop_reason=progress.stop_reason,
        cumulative_logprob=answer.cumulative_logprob,
    )


def _scored(answer: Answer) -> Delta:
    """Write the only news of an answer that scores its prompt and draws nothing."""
    request = answer.request
    return Delta(
        request_id=answer.user_id,
        choice=request.choice,
        first_token=request.output_len,
        token_ids=[],
        text="",
        prompt_logprobs=_take_prompt_logprobs(answer),
        cached_len=_cached_len(answer),
        finish_reason=FinishReason.LENGTH.value,
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
        cached_len=_cached_len(answer),
        finish_reason=FinishReason.ERROR.value,
        error=str(error),
        error_code=error.code,
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def _cached_len(answer: Answer) -> int:
    told = answer.told_cached_len
    return answer.request.cached_len if told is None else told


def _take_prompt_logprobs(answer: Answer) -> list[TokenLogprobs | None] | None:
    """Return the prompt's logprobs for the first news after the prompt, if they are wanted."""
    if answer.is_prompt_reported:
        return None
    answer.is_prompt_reported = True
    params = answer.request.params
    if params.prompt_logprobs is None:
        return None
    start = params.prompt_logprob_start
    return [answer.prompt_logprobs.get(position) for position in range(start, answer.request.prompt_len)]
