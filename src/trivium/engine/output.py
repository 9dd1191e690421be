"""From wanted rows to outcomes and deltas.

::

    rows of an entry     scored  scored  scored  draw
    position p           14      15      16      17        entry.start = 14, num_tokens = 4
    scores / draws       15      16      17      18        SampleRow.position

What a grammar forces behind a drawn token is taken with it (*jump-forward*): the next step runs all of it at once, as
it would a part of a prompt, and draws behind the last::

    drawn one by one     7   ,   "   name   "   :   "   K         eight steps
    with jump-forward    7 , " name " : "               K         two
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trivium.base.ids import FinishReason, TokenId
from trivium.engine.messages import Delta
from trivium.sampling.batch import SampleRow
from trivium.schedule.decision import Outcome

if TYPE_CHECKING:
    from trivium.base.errors import TriviumError
    from trivium.engine.admit import Answer
    from trivium.grammar.automaton import Progress
    from trivium.sampling.batch import Sampled, TokenLogprobs
    from trivium.schedule.decision import Entry

_GOES_ON = Outcome()
_FAILED = Outcome((), FinishReason.ERROR)


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
            row.position = position = entry.start + entry.num_tokens
            row.held_back_ids = answer.automaton.held_back_at(position - row.prompt_len)
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


def outcomes_of(
    entries: Sequence[Entry], answers: Sequence[Answer], sampled: Sampled, errors: dict[int, TriviumError]
) -> list[Outcome]:
    """Say what the scheduler records of a step, one per entry: the tokens, and whether one of them ends its answer.

    The texts are not looked at: a stop text is found when the entry is read (`read_entry`), after this. A token that
    its answer's grammar does not know ends that answer with an error, which `errors` then tell.
    """
    tokens: list[TokenId] = sampled.token_ids.tolist()
    outcomes: list[Outcome] = []
    for entry, answer in zip(entries, answers, strict=True):
        if errors and _first_error(entry, errors) is not None:
            outcomes.append(_FAILED)
        elif entry.draws:
            row = entry.first_row + entry.num_rows - 1
            token, automaton = tokens[row], answer.automaton
            if automaton.is_constrained:
                outcomes.append(_outcome_under_grammar(answer, token, row, errors))
            else:
                is_end = token in answer.request.end_ids and automaton.ends_at(token)
                outcomes.append(Outcome((token,), FinishReason.STOP if is_end else None))
        else:
            outcomes.append(_GOES_ON)
    return outcomes


def _outcome_under_grammar(answer: Answer, token: TokenId, row: int, errors: dict[int, TriviumError]) -> Outcome:
    request = answer.request
    jumped: list[TokenId] = []
    try:
        is_end = answer.automaton.take(token)
        if answer.jumps and not is_end:
            jumped, is_end = answer.automaton.jump(request.end_len - len(request.tokens) - 1)
    except TriviumError as error:
        errors[row] = error
        return _FAILED
    return Outcome((token, *jumped), FinishReason.STOP if is_end else None)


def read_entry(
    entry: Entry,
    answer: Answer,
    rows: Sequence[SampleRow],
    sampled: Sampled,
    errors: Mapping[int, TriviumError],
) -> Delta | None:
    """Take what the sampler said to an answer: prompt logprobs are kept, the automaton reads the drawn token.

    Args:
        entry: Recorded by the scheduler.
        answer: Its own.
        rows: What was asked of the step's sampling; see `sample_rows`.
        sampled: What was answered.
        errors: By row, why its answer ends here.

    Returns:
        The news for the client, if there are any.
    """
    if errors and (error := _first_error(entry, errors)) is not None:
        return failed(answer, error)
    if entry.num_rows > entry.draws:
        for row in range(entry.first_row, entry.first_row + entry.num_scored):
            answer.prompt_logprobs[rows[row].position] = sampled.logprobs[row]
    request = answer.request
    if not entry.draws:
        return None if request.finish_reason is None else _scored(answer)
    row = entry.first_row + entry.num_rows - 1
    if sampled.chosen_logprobs is not None:
        answer.cumulative_logprob += float(sampled.chosen_logprobs[row])
    logprobs, index = sampled.logprobs[row], answer.num_told
    tokens: list[int] = list(request.tokens[request.prompt_len + index :])
    progress = answer.automaton.advance(tokens[0])
    if len(tokens) > 1:
        progress = _read_on(answer, tokens, progress)
    if progress.finish is None and request.finish_reason is not None:
        progress = progress.followed_by(answer.automaton.finish(request.finish_reason))
    answer.num_told = index + len(tokens)
    return Delta(
        request_id=answer.user_id,
        choice=request.choice,
        first_token=index,
        token_ids=tokens,
        text=progress.text,
        parts=progress.parts,
        logprobs=None if logprobs is None else [logprobs],
        prompt_logprobs=None if answer.is_prompt_reported else _take_prompt_logprobs(answer),
        cached_len=_cached_len(answer),
        finish_reason=None if progress.finish is None else progress.finish.value,
        stop_reason=progress.stop_reason,
        cumulative_logprob=answer.cumulative_logprob,
    )


def _read_on(answer: Answer, tokens: list[int], progress: Progress) -> Progress:
    """Read the tokens behind the first, as far as the answer goes; return what all of them brought.

    Effects:
        Those behind its end are dropped from `tokens`.
    """
    num_read = 1
    while progress.finish is None and num_read < len(tokens):
        progress = progress.followed_by(answer.automaton.advance(tokens[num_read]))
        num_read += 1
    del tokens[num_read:]
    return progress


def _first_error(entry: Entry, errors: Mapping[int, TriviumError]) -> TriviumError | None:
    rows = range(entry.first_row, entry.first_row + entry.num_rows)
    return next((errors[row] for row in rows if row in errors), None)


def _scored(answer: Answer) -> Delta:
    """Write the only news of an answer that scores its prompt and draws nothing."""
    request = answer.request
    return Delta(
        request_id=answer.user_id,
        choice=request.choice,
        first_token=answer.num_told,
        token_ids=[],
        text="",
        prompt_logprobs=_take_prompt_logprobs(answer),
        cached_len=_cached_len(answer),
        finish_reason=FinishReason.LENGTH.value,
        cumulative_logprob=answer.cumulative_logprob,
    )


def accepted(answer: Answer) -> Delta:
    """Write the empty delta that says a request is queued."""
    return Delta(request_id=answer.user_id, choice=0, first_token=answer.num_told, token_ids=[], text="")


def failed(answer: Answer, error: TriviumError) -> Delta:
    """Write the last delta of an answer that ends with an error."""
    return ended_by(
        error, answer.user_id, answer.request.choice, first_token=answer.num_told, cached_len=_cached_len(answer)
    )


def ended_by(error: TriviumError, request_id: str, choice: int, *, first_token: int = 0, cached_len: int = 0) -> Delta:
    """Write the last delta of a choice that ends with an error, whether or not it ever began."""
    return Delta(
        request_id=request_id,
        choice=choice,
        first_token=first_token,
        token_ids=[],
        text="",
        cached_len=cached_len,
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
