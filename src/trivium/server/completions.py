"""`/v1/completions`: from body to `Job`, and from deltas to OpenAI's completion objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.engine.messages import Delta
from trivium.sampling.batch import TokenLogprobs
from trivium.server.generate import Collected, best_answers
from trivium.server.job import (
    Job,
    Prompt,
    check_answers,
    check_prompt_ids,
    check_stream,
    fit_to_context,
    new_job,
    sampling_params,
)
from trivium.server.presenter import Presenter, encode
from trivium.server.prompts import split_prompts, tokenize_prompts
from trivium.server.service import Service
from trivium.server.shapes import Completion, CompletionChoice, CompletionLogprobs, Usage
from trivium.server.tables import COMPLETIONS
from trivium.server.token_texts import CompletionScores, TokenTexts

DEFAULT_MAX_TOKENS = 16


async def parse(service: Service, body: Mapping[str, Any]) -> Job:
    """Turn a body into a job.

    Raises:
        RequestError: A field is refused, or the prompt does not fit.
    """
    model = service.choose_model(body.get("model"))
    values = COMPLETIONS.read(body)
    is_echo, num_logprobs = values.get("echo", False), values.get("logprobs")
    params = sampling_params(
        values,
        defaults=service.served.sampling_defaults,
        vocab_size=service.vocab_size,
        max_tokens=values.get("max_tokens"),
        logprobs=num_logprobs,
        prompt_logprobs=_scored_prompt(values),
    )
    check_stream(values, params)
    entries = split_prompts("prompt", values.get("prompt"))
    check_answers(len(entries), params)
    prompts = []
    adds_special = values.get("add_special_tokens", True)
    for name, ids, text in await tokenize_prompts(service, entries, adds_special=adds_special):
        fitted = fit_to_context(
            params, len(ids), context_len=service.context_len, default=DEFAULT_MAX_TOKENS, param="prompt"
        )
        check_prompt_ids(name, ids, service.vocab_size)
        prompts.append(Prompt(ids=ids, text=_echo(service, ids, text) if is_echo else "", params=fitted))
    return new_job("cmpl", values, params, model=model, prompts=prompts, num_logprobs=num_logprobs, is_echo=is_echo)


def _scored_prompt(values: Mapping[str, Any]) -> int | None:
    """Alternatives that the engine must report per prompt token: for `echo` with `logprobs`, or the extension."""
    asked: int | None = values.get("prompt_logprobs")
    if not values.get("echo") or "logprobs" not in values:
        return asked
    if values.get("prompt_logprob_start"):
        raise InvalidParameterError(
            "prompt_logprob_start must be 0 with echo and logprobs", param="prompt_logprob_start"
        )
    return max(int(values["logprobs"]), asked or 0)


def _echo(service: Service, ids: Sequence[int], text: str | None) -> str:
    """Text that shows a prompt before its answer."""
    return service.tokenizer.decode(ids, skip_special_tokens=False) if text is None else text


class CompletionForm(Presenter):
    """Shows a job's deltas as completion objects.

    Prompt logprobs come with the first news of choice 0; with `echo`, news of another choice that comes before waits.
    """

    event_object = "text_completion"

    def __init__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> None:
        super().__init__(job, texts, created=created, fingerprint=fingerprint)
        self._scores: dict[int, CompletionScores] = {}
        self._prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
        self._waiting: dict[int, list[Delta]] = {}
        self._scores_prompt = job.is_echo and job.num_logprobs is not None
        self._is_plain = job.num_logprobs is None and not job.returns_token_ids and not job.is_echo

    def chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        """Show a delta as events; nothing when it has nothing to show."""
        if self._is_plain:
            return self._plain_chunk(prompt_idx * self._job.num_choices + delta.choice, delta)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_idx] = delta.prompt_logprobs
        if not (delta.text or delta.token_ids or delta.finish_reason):
            return b""
        if self._scores_prompt and prompt_idx not in self._prompt_logprobs:
            self._waiting.setdefault(prompt_idx, []).append(delta)
            return b""
        waited = self._waiting.pop(prompt_idx, ())
        return b"".join(self._full_chunk(prompt_idx, news) for news in (*waited, delta))

    def whole(self, drawn: Sequence[Sequence[Collected]], usage: Usage) -> bytes:
        """Show all answers as one object.

        Args:
            drawn: Per prompt, every drawn answer.
            usage: What they cost.
        """
        choices: list[CompletionChoice] = []
        for prompt_idx, answers in enumerate(drawn):
            self._prompt_logprobs[prompt_idx] = next((a.prompt_logprobs for a in answers if a.prompt_logprobs), [])
            for answer in best_answers(answers, self._job.num_choices):
                choices.append(self._choice(len(choices), prompt_idx, answer))
        return encode(
            Completion(
                id=self._job.job_id,
                created=self._created,
                model=self._job.model,
                system_fingerprint=self._fingerprint,
                choices=choices,
                usage=usage,
            )
        )

    def _choice(self, index: int, prompt_idx: int, answer: Collected) -> CompletionChoice:
        job = self._job
        choice = CompletionChoice(
            index=index,
            text=(job.prompts[prompt_idx].text if job.is_echo else "") + answer.text,
            logprobs=self._logprobs(index, prompt_idx, answer.logprobs),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )
        if job.num_prompt_logprobs is not None:
            known = self._prompt_logprobs[prompt_idx]
            choice.prompt_logprobs = self._texts.prompt_entries(known, job.num_prompt_logprobs)
        if job.returns_token_ids:
            choice.token_ids = answer.token_ids
            choice.prompt_token_ids = job.prompts[prompt_idx].ids
        return choice

    def _plain_chunk(self, index: int, delta: Delta) -> bytes:
        if delta.finish_reason is None:
            if not delta.text:
                return b""
            end = b',"logprobs":null,"finish_reason":null}]}\n\n'
        else:
            reason, stop = delta.finish_reason.encode(), encode(delta.stop_reason)
            end = b',"logprobs":null,"finish_reason":"%b","stop_reason":%b}]}\n\n' % (reason, stop)
        return self._head + b'{"index":%d,"text":' % index + encode(delta.text) + end

    def _full_chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        job = self._job
        index = prompt_idx * job.num_choices + delta.choice
        is_first = index not in self._begun
        choice: dict[str, Any] = {
            "index": index,
            "text": (job.prompts[prompt_idx].text if is_first and job.is_echo else "") + delta.text,
            "logprobs": self._logprobs(index, prompt_idx, delta.logprobs or ()),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if job.returns_token_ids:
            choice["token_ids"] = delta.token_ids
            if is_first:
                choice["prompt_token_ids"] = job.prompts[prompt_idx].ids
        self._begun.add(index)
        return self._event(choice)

    def _logprobs(self, index: int, prompt_idx: int, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs | None:
        """Show scores of an answer's next tokens, preceded by its echoed prompt's the first time."""
        job = self._job
        if job.num_logprobs is None:
            return None
        known = self._scores.get(index)
        if known is not None:
            return known.answer(entries)
        scores = CompletionScores(self._texts, job.num_logprobs, skip_special_tokens=job.skip_special_tokens)
        self._scores[index] = scores
        if not job.is_echo:
            return scores.answer(entries)
        prompt = job.prompts[prompt_idx]
        return scores.prompt_then_answer(prompt.text, prompt.ids, self._prompt_logprobs[prompt_idx], entries)
