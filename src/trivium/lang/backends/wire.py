"""What a server is asked, and what it answers, in the words of its route `/generate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec

from trivium.base.errors import (
    AuthenticationError,
    CapacityError,
    DeadlineExceededError,
    EngineDeadError,
    InternalError,
    InvalidParameterError,
    ModelNotFoundError,
    PoisonRequestError,
    PromptTooLongError,
    RequestError,
    RequestTooLargeError,
    TemplateError,
    TriviumError,
    UnsupportedFeatureError,
)
from trivium.base.ids import TokenId
from trivium.config.chat_output import ChatOutput
from trivium.config.sampling import SGLANG_NAMES, SamplingParams
from trivium.engine.messages import Delta
from trivium.grammar.parts import OutputPart, PartKind
from trivium.sampling.batch import TokenLogprobs

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.structured import StructuredOutputs

UNKNOWN_RANK = 0
"""Rank of tokens in logprobs that come from a server, which does not tell it."""
_THEIR_NAMES = {ours: theirs for theirs, ours in SGLANG_NAMES.items()}
_WRITTEN_APART = frozenset({
    "best_of", "max_tokens", "spaces_between_special_tokens", "logit_bias", "cache_retention",
    "cache_retention_decode", "logprobs", "prompt_logprobs", "prompt_logprob_start", "structured_outputs",
    "chat_output",
})  # fmt: skip
_PLAIN = SamplingParams()

_Entry = tuple[float | None, int, str | None]


class _Reason(msgspec.Struct):
    type: str
    matched: int | str | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Reason | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    input_token_logprobs: list[_Entry] | None = None
    output_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    output_top_logprobs: list[list[_Entry]] | None = None


class _Part(msgspec.Struct):
    kind: PartKind
    text: str


class _Refusal(msgspec.Struct):
    message: str
    code: str | None = None
    param: str | None = None


class _Event(msgspec.Struct):
    text: str = ""
    output_ids: list[int] = []
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    index: int = 0
    parts: list[_Part] | None = None
    error: _Refusal | None = None


def request_body(
    prompt_ids: Sequence[int], params: SamplingParams, *, max_len: int, program: ProgramShare | None = None
) -> dict[str, Any]:
    """Write a request that is answered as a stream of what is new.

    Args:
        prompt_ids: The prompt.
        params: How to answer it.
        max_len: Longest prompt plus answer, for an answer without a limit of its own.
        program: The run to which it belongs.

    Raises:
        UnsupportedFeatureError: A parameter cannot be asked of a server in this way.
    """
    body: dict[str, Any] = {
        "input_ids": list(prompt_ids),
        "sampling_params": _sampling(params, max_len - len(prompt_ids)),
        "stream": True,
        "incremental_streaming_output": True,
    }
    if program is not None:
        body["program"] = {"id": program.program_id, "remaining_tokens": program.remaining_tokens}
    chat = params.chat_output
    if chat is not None:
        wanted = ChatOutput(reasoning_dialect=chat.reasoning_dialect, starts_in_reasoning=chat.starts_in_reasoning)
        if chat != wanted or chat.reasoning_dialect is None:
            raise UnsupportedFeatureError("a server is asked for tool calls by messages only", param="chat_output")
        body |= {"reasoning_parser": chat.reasoning_dialect, "starts_in_reasoning": chat.starts_in_reasoning}
    if params.logprobs is not None or params.prompt_logprobs is not None:
        body |= {
            "return_logprob": True,
            "top_logprobs_num": max(params.logprobs or 0, params.prompt_logprobs or 0),
            "logprob_start_len": _first_entry(params),
        }
    return body


def _first_entry(params: SamplingParams) -> int:
    """Return where prompt logprobs begin: one before the first that is wanted, since the first entry has none."""
    return -1 if params.prompt_logprobs is None else max(params.prompt_logprob_start - 1, 0)


def _sampling(params: SamplingParams, room: int) -> dict[str, Any]:
    if params.best_of is not None:
        raise UnsupportedFeatureError("best_of cannot be asked of a server by programs", param="best_of")
    given: dict[str, Any] = {
        _THEIR_NAMES.get(each.name, each.name): value
        for each in fields(params)
        if each.name not in _WRITTEN_APART and (value := getattr(params, each.name)) != getattr(_PLAIN, each.name)
    }
    given["max_new_tokens"] = room if params.max_tokens is None else params.max_tokens
    if params.logit_bias:
        given["logit_bias"] = {str(id_): bias for id_, bias in params.logit_bias.items()}
    if params.cache_retention:
        given["cache_retention"] = [
            {"token_range": [each.start, each.end], "priority": each.priority, "duration_s": each.duration_s}
            for each in params.cache_retention
        ]
    if params.cache_retention_decode is not None:
        given["cache_retention_decode"] = asdict(params.cache_retention_decode)
    if params.structured_outputs is not None:
        given["structured_outputs"] = _constraint(params.structured_outputs)
    return given


def _constraint(wanted: StructuredOutputs) -> dict[str, Any]:
    value = getattr(wanted, wanted.kind)
    plain = dict(value) if isinstance(value, Mapping) else value
    return {wanted.kind: plain, **({"disable_any_whitespace": False} if wanted.any_whitespace else {})}


def read_event(payload: bytes, params: SamplingParams) -> Delta:
    """Read an event of the answer's stream.

    Raises:
        TriviumError: It says that the answer failed; or it is no such event.
    """
    try:
        event = msgspec.json.decode(payload, type=_Event)
    except msgspec.DecodeError as error:
        raise InternalError(f"the server answers what is no event of /generate: {error}") from error
    if event.error is not None:
        raise _error(event.error, None, None)
    meta, reason = event.meta_info, event.meta_info.finish_reason
    return Delta(
        request_id="endpoint",
        choice=event.index,
        first_token=meta.completion_tokens - len(event.output_ids),
        token_ids=event.output_ids,
        text=event.text,
        parts=None if event.parts is None else [OutputPart(part.kind, part.text) for part in event.parts],
        logprobs=_answer_scores(meta, params),
        prompt_logprobs=_prompt_scores(meta, params) if event.index == 0 else None,
        cached_len=meta.cached_tokens,
        finish_reason=None if reason is None else reason.type,
        stop_reason=None if reason is None else reason.matched,
    )


def _answer_scores(meta: _Meta, params: SamplingParams) -> list[TokenLogprobs] | None:
    if params.logprobs is None:
        return None
    found = _scores(meta.output_token_logprobs, meta.output_top_logprobs, params.logprobs)
    return [each for each in found if each is not None]


def _prompt_scores(meta: _Meta, params: SamplingParams) -> list[TokenLogprobs | None] | None:
    if params.prompt_logprobs is None or meta.input_token_logprobs is None:
        return None
    found = _scores(meta.input_token_logprobs, meta.input_top_logprobs, params.prompt_logprobs)
    return found[params.prompt_logprob_start - _first_entry(params) :]


def _scores(
    entries: Sequence[_Entry] | None, tops: Sequence[Sequence[_Entry] | None] | None, num_top: int
) -> list[TokenLogprobs | None]:
    """Read logprobs, each with at most `num_top` alternatives."""
    known = entries or ()
    rows = tops if tops is not None else [()] * len(known)
    return [_score(entry, (row or ())[:num_top]) for entry, row in zip(known, rows, strict=True)]


def _score(entry: _Entry, top: Sequence[_Entry]) -> TokenLogprobs | None:
    logprob, token_id, _ = entry
    if logprob is None:
        return None
    ids = tuple(TokenId(each[1]) for each in top)
    return TokenLogprobs(TokenId(token_id), logprob, UNKNOWN_RANK, ids, tuple(each[0] or 0.0 for each in top))


_KINDS: Mapping[str, type[RequestError]] = {
    kind.code: kind
    for kind in (
        InvalidParameterError, UnsupportedFeatureError, PromptTooLongError, RequestTooLargeError, TemplateError,
        ModelNotFoundError, AuthenticationError,
    )
}  # fmt: skip
_ENDS: Mapping[str, type[TriviumError]] = {
    kind.code: kind for kind in (DeadlineExceededError, EngineDeadError, PoisonRequestError)
}
_BUSY = frozenset({"overloaded", "not_ready", "shutting_down"})
_FIRST_SERVER_FAULT = 500


class QueueFullError(CapacityError):
    """The server takes no more for now; a request that it refused so is sent again."""


def read_refusal(body: bytes, status: int, retry_after: str | None = None) -> TriviumError:
    """Return what a server says instead of an answer, as the error that it would be in its own process.

    Args:
        body: The answer's body.
        status: Its status.
        retry_after: The value of its header `Retry-After`.
    """
    try:
        told = msgspec.json.decode(body, type=_Event).error
    except msgspec.DecodeError:
        told = None
    if told is None:
        told = _Refusal(f"the server answers with status {status}: {body[:200].decode('utf-8', 'replace')}")
    return _error(told, status, retry_after)


def _error(told: _Refusal, status: int | None, retry_after: str | None) -> TriviumError:
    code = told.code or ""
    if code in _KINDS:
        return _KINDS[code](told.message, param=told.param)
    if code in _ENDS:
        return _ENDS[code](told.message)
    if code in _BUSY:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else 1.0
        kind = QueueFullError if code == "overloaded" else CapacityError
        return kind(told.message, retry_after_s=seconds)
    if status is not None and status < _FIRST_SERVER_FAULT:
        return RequestError(told.message, param=told.param)
    return InternalError(told.message)
