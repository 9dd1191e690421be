"""`/generate`, the route that SGLang's programs use: from body to `Job`, and from deltas to its objects."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from msgspec import UNSET, UnsetType

from trivium.base.errors import InvalidParameterError, RequestError
from trivium.base.ids import FinishReason
from trivium.config.chat_output import ChatOutput
from trivium.config.sampling import SGLANG_NAMES, SamplingParams
from trivium.engine.messages import Delta
from trivium.grammar.dialects import DIALECTS, dialect_of
from trivium.grammar.parts import OutputPart, join_parts
from trivium.sampling.batch import TokenLogprobs
from trivium.server.events import DONE, event
from trivium.server.fields import root_field
from trivium.server.generate import Collected, new_collection
from trivium.server.job import (
    GenerateShape,
    Job,
    Prompt,
    check_answers,
    check_prompt_ids,
    fit_to_context,
    new_job,
    sampling_params,
)
from trivium.server.presenter import encode
from trivium.server.prompts import Entry, split_prompts, tokenize_prompts
from trivium.server.service import Service
from trivium.server.sglang_shapes import AnswerPart, EndReason, GenerateAnswer, GenerateMeta, LogprobEntry
from trivium.server.sglang_tables import GENERATE, to_own_names
from trivium.server.shapes import Usage
from trivium.server.token_texts import TokenTexts

DEFAULT_MAX_NEW_TOKENS = 128
_THEIR_NAMES = {ours: theirs for theirs, ours in SGLANG_NAMES.items()}
_OWN_NAME = re.compile(rf"\b({'|'.join(_THEIR_NAMES)})\b")
_NEEDS = {
    "logprob_start_len": "return_logprob",
    "top_logprobs_num": "return_logprob",
    "return_text_in_logprobs": "return_logprob",
    "incremental_streaming_output": "stream",
    "starts_in_reasoning": "reasoning_parser",
}
_NEUTRAL = (False, 0, -1)


async def parse(service: Service, body: Mapping[str, Any]) -> Job:
    """Turn a body into a job.

    Raises:
        RequestError: A field is refused, or the prompt does not fit.
    """
    values = GENERATE.read(body)
    model = service.choose_model(values.get("model", service.served.name))
    _check_needs(values)
    entries, is_list = _entries(values)
    field = "text" if "text" in values else "input_ids"
    drawn = _sampling(service, values, len(entries))
    start = values.get("logprob_start_len", -1)
    check_answers(len(entries), drawn[0])
    prompts = []
    adds_special = values.get("add_special_tokens", True)
    for idx, (name, ids, _) in enumerate(await tokenize_prompts(service, entries, adds_special=adds_special)):
        check_prompt_ids(name, ids, service.vocab_size)
        with _in_their_words():
            fitted = fit_to_context(
                drawn[idx], len(ids), context_len=service.context_len, default=DEFAULT_MAX_NEW_TOKENS, param=field
            )
        prompts.append(Prompt(ids=ids, params=_scored(fitted, len(ids), start)))
    shape = GenerateShape(
        is_list=is_list or drawn[0].n > 1,
        is_incremental=values.get("incremental_streaming_output", False),
        logprob_start=start,
        has_texts=values.get("return_text_in_logprobs", False),
    )
    given: Mapping[str, Any] = next(iter(values.get("sampling_params", ())), {})
    named = {**values, **to_own_names(given)}
    num_logprobs = drawn[0].logprobs
    job = new_job("gen", named, drawn[0], model=model, prompts=prompts, num_logprobs=num_logprobs)
    return replace(job, shape=shape)


def _check_needs(values: Mapping[str, Any]) -> None:
    """Refuse what would have no effect."""
    for name, needed in _NEEDS.items():
        if values.get(name, False) not in _NEUTRAL and not values.get(needed):
            wants = "" if needed == "reasoning_parser" else " to be true"
            raise InvalidParameterError(f"{name} needs {needed}{wants}", param=name)


def _entries(values: Mapping[str, Any]) -> tuple[list[Entry], bool]:
    """Return the prompts, and whether they came as a list."""
    if ("text" in values) == ("input_ids" in values):
        raise InvalidParameterError("give either text or input_ids", param="text")
    if "text" in values:
        given, forms = values["text"], "a text or a list of texts"
        entries = split_prompts("text", given, forms=forms)
        is_list = isinstance(given, list)
        wrong = next((name for name, entry in entries if not isinstance(entry, str)), None)
    else:
        given, forms = values["input_ids"], "token ids or a list of lists of them"
        entries = split_prompts("input_ids", given, forms=forms)
        is_list = isinstance(given, list) and isinstance(given[0], list)
        wrong = next((name for name, entry in entries if isinstance(entry, str)), None)
    if wrong is not None:
        field = root_field(wrong)
        raise InvalidParameterError(f"{wrong} has a wrong type; {field} must be {forms}", param=field)
    return entries, is_list


def _sampling(service: Service, values: Mapping[str, Any], num_prompts: int) -> list[SamplingParams]:
    """Return each prompt's parameters before they are fitted to it; SGLang's defaults, not the checkpoint's."""
    given = values.get("sampling_params", [{}])
    if len(given) not in {1, num_prompts}:
        raise InvalidParameterError(
            f"sampling_params has {len(given)} objects for {num_prompts} prompts; give one, or one per prompt",
            param="sampling_params",
        )
    if len({each.get("n", 1) for each in given}) > 1:
        raise InvalidParameterError("n must be the same for all prompts of a request", param="n")
    num_logprobs = values.get("top_logprobs_num", 0) if values.get("return_logprob") else None
    output = _chat_output(values)
    made = []
    for each in given:
        own = to_own_names(each)
        with _in_their_words():
            made.append(
                sampling_params(
                    own,
                    defaults={},
                    vocab_size=service.vocab_size,
                    max_tokens=own.get("max_tokens"),
                    logprobs=num_logprobs,
                    chat_output=output,
                )
            )
    return made * num_prompts if len(made) == 1 else made


def _chat_output(values: Mapping[str, Any]) -> ChatOutput | None:
    name = values.get("reasoning_parser")
    if name is None:
        return None
    dialect = dialect_of(name)
    if dialect is None or not dialect.reads_reasoning:
        known = ", ".join(sorted(each for each, row in DIALECTS.items() if row.reads_reasoning))
        raise InvalidParameterError(
            f"reasoning_parser is '{name[:60]}', whose reasoning is not known; known are {known}",
            param="reasoning_parser",
        )
    return ChatOutput(reasoning_dialect=name, starts_in_reasoning=values.get("starts_in_reasoning", False))


def _scored(params: SamplingParams, prompt_len: int, start: int) -> SamplingParams:
    """Ask for the prompt logprobs behind `start`, which has none itself."""
    if params.logprobs is None or start < 0:
        return params
    if start >= prompt_len:
        raise InvalidParameterError(
            f"logprob_start_len is {start}; the prompt has {prompt_len} tokens, so it must be -1 to {prompt_len - 1}",
            param="logprob_start_len",
        )
    if start + 1 == prompt_len:
        return params
    return replace(params, prompt_logprobs=params.logprobs, prompt_logprob_start=start + 1)


@contextmanager
def _in_their_words() -> Iterator[None]:
    """Name fields in refusals as the request does."""
    try:
        yield
    except RequestError as error:
        message = _OWN_NAME.sub(lambda found: _THEIR_NAMES[found[1]], str(error))
        raise type(error)(message, param=_THEIR_NAMES.get(error.param or "", error.param)) from None


class GenerateForm:
    """Shows a job's deltas as SGLang shows answers: with everything so far in each event, or with what is new.

    Prompt logprobs come with the first news of choice 0; news of another choice that comes before waits.
    """

    def __init__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> None:
        self._job = job
        self._texts = texts
        self._fingerprint = fingerprint
        self._began_s = time.monotonic()
        self._so_far = new_collection(job)
        """Of a stream, per prompt and choice."""
        self._shown: set[tuple[int, int]] = set()
        """Answers of which an event has been shown."""
        self._waiting: dict[int, list[Delta]] = {}

    def chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        """Show a delta as events; nothing when it has nothing to show."""
        if self._job.prompts[prompt_idx].params.prompt_logprobs is not None:
            first = self._so_far[prompt_idx][0]
            if delta.prompt_logprobs is not None:
                first.prompt_logprobs = delta.prompt_logprobs
            if first.prompt_logprobs is None:
                self._waiting.setdefault(prompt_idx, []).append(delta)
                return b""
        waited = self._waiting.pop(prompt_idx, ())
        return b"".join(self._event(prompt_idx, news) for news in (*waited, delta))

    def end(self, usage: Usage) -> bytes:
        """Show the end of the stream."""
        return DONE

    def whole(self, drawn: Sequence[Sequence[Collected]], usage: Usage) -> bytes:
        """Show all answers: one as an object, or a list of them.

        Args:
            drawn: Per prompt, every answer.
            usage: What they cost.
        """
        answers = [
            self._answer(prompt_idx, choice, answers[0], answer)
            for prompt_idx, answers in enumerate(drawn)
            for choice, answer in enumerate(answers)
        ]
        return encode(answers if self._job.shape.is_list else answers[0])

    def _event(self, prompt_idx: int, delta: Delta) -> bytes:
        job, so_far = self._job, self._so_far[prompt_idx]
        own = so_far[delta.choice]
        own.add(delta)
        if not (delta.text or delta.token_ids or delta.finish_reason):
            return b""
        answer = self._answer(prompt_idx, delta.choice, so_far[0], own)
        if job.shape.is_incremental:
            self._cut_to_news(answer, (prompt_idx, delta.choice), delta)
        if job.shape.is_list:
            answer.index = prompt_idx * job.num_choices + delta.choice
        return event(encode(answer))

    def _cut_to_news(self, answer: GenerateAnswer, key: tuple[int, int], delta: Delta) -> None:
        """Leave what an event has beyond those before it; counts go on being of everything."""
        meta = answer.meta_info
        answer.text, answer.output_ids = delta.text, delta.token_ids
        answer.parts = _parts(delta.parts)
        if self._job.num_logprobs is not None:
            meta.output_token_logprobs = self._entries(delta.logprobs or ())
            meta.output_top_logprobs = self._tops(delta.logprobs or ())
        if key in self._shown:
            meta.input_token_logprobs = meta.input_top_logprobs = UNSET
        self._shown.add(key)

    def _answer(self, prompt_idx: int, choice: int, first: Collected, own: Collected) -> GenerateAnswer:
        """Show an answer; `first` is that of choice 0, which knows what is of its prompt."""
        job = self._job
        meta = GenerateMeta(
            id=job.request_id(prompt_idx),
            finish_reason=_end_reason(own),
            prompt_tokens=len(job.prompts[prompt_idx].ids),
            completion_tokens=len(own.token_ids),
            cached_tokens=first.cached_len,
            reasoning_tokens=own.reasoning.num_tokens,
            weight_version=self._fingerprint,
        )
        if own.finish_reason is not None:
            meta.e2e_latency = time.monotonic() - self._began_s
        if job.num_logprobs is not None:
            self._add_logprobs(meta, prompt_idx, first, own)
        return GenerateAnswer(text=own.text, output_ids=own.token_ids, meta_info=meta, parts=_parts(own.parts))

    def _add_logprobs(self, meta: GenerateMeta, prompt_idx: int, first: Collected, own: Collected) -> None:
        start, known = self._job.shape.logprob_start, first.prompt_logprobs or ()
        meta.output_token_logprobs = self._entries(own.logprobs)
        meta.output_token_logprobs_length = len(own.logprobs)
        meta.output_top_logprobs = self._tops(own.logprobs)
        scored = [each for each in known if each is not None]
        begins = [self._entry(None, self._job.prompts[prompt_idx].ids[start])] if start >= 0 else []
        meta.input_token_logprobs = [*begins, *self._entries(scored)]
        tops = self._tops(scored)
        if tops is not UNSET:
            meta.input_top_logprobs = [*(None for _ in begins), *tops]

    def _entries(self, scored: Sequence[TokenLogprobs]) -> list[LogprobEntry]:
        return [self._entry(each.logprob, each.token_id) for each in scored]

    def _tops(self, scored: Sequence[TokenLogprobs]) -> list[list[LogprobEntry]] | UnsetType:
        num_top = self._job.num_logprobs
        if not num_top:
            return UNSET
        return [
            [self._entry(*pair) for pair in zip(each.top_logprobs[:num_top], each.top_ids[:num_top], strict=True)]
            for each in scored
        ]

    def _entry(self, logprob: float | None, token_id: int) -> LogprobEntry:
        return logprob, token_id, self._texts.text_of(token_id) if self._job.shape.has_texts else None


def _parts(parts: Sequence[OutputPart] | None) -> list[AnswerPart] | UnsetType:
    return UNSET if parts is None else [AnswerPart(part.kind, part.text) for part in join_parts(parts)]


def _end_reason(own: Collected) -> EndReason | None:
    if own.finish_reason is None:
        return None
    if own.finish_reason == FinishReason.LENGTH:
        return EndReason(type=own.finish_reason, length=len(own.token_ids))
    return EndReason(type=own.finish_reason, matched=own.stop_reason)
