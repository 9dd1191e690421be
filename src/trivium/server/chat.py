"""`/v1/chat/completions`: from body to `Job`, and from deltas to OpenAI's chat completion objects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
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
from trivium.server.service import LONG_TEXT_CHARS, Service
from trivium.server.shapes import ChatAnswer, ChatChoice, ChatCompletion, ChatLogprobs, Usage
from trivium.server.tables import CHAT
from trivium.server.token_texts import TokenTexts
from trivium.tokens.conversation import normalise_messages, render_prompt


async def parse(service: Service, body: Mapping[str, Any]) -> Job:
    """Turn a body into a job.

    Raises:
        RequestError: A field is refused, the template refuses the messages, or the prompt does not fit.
    """
    model = service.served.check_name(body.get("model"))
    values = CHAT.read(body)
    num_logprobs = _num_logprobs(values)
    params = sampling_params(
        values,
        defaults=service.served.sampling_defaults,
        vocab_size=service.vocab_size,
        max_tokens=_max_tokens(values),
        logprobs=num_logprobs,
        prompt_logprobs=values.get("prompt_logprobs"),
    )
    check_stream(values, params)
    check_answers(1, params)
    ids = await prompt_ids(service, values)
    fitted = fit_to_context(params, len(ids), context_len=service.context_len, default=None, param="messages")
    prompts = [Prompt(ids=ids, params=fitted)]
    return new_job("chatcmpl", values, params, model=model, prompts=prompts, num_logprobs=num_logprobs)


async def prompt_ids(service: Service, values: Mapping[str, Any]) -> list[int]:
    """Render the conversation and tokenize it; the template writes the start token, so none is added to it.

    Raises:
        RequestError: The messages are refused, or there is no template.
    """
    messages = normalise_messages(values.get("messages"))
    template = service.chat_template
    if template is None:
        raise UnsupportedFeatureError(
            "this model has no chat template; use /v1/completions, or start the server with --chat-template",
            param="messages",
        )
    render = partial(
        render_prompt,
        template,
        messages,
        add_generation_prompt=values.get("add_generation_prompt"),
        continue_final_message=values.get("continue_final_message", False),
        variables=values.get("chat_template_kwargs", {}),
    )
    is_short = sum(len(message["content"]) for message in messages) < LONG_TEXT_CHARS
    text = render() if is_short else await asyncio.to_thread(render)
    (ids,) = await service.encode([text], add_special_tokens=values.get("add_special_tokens", False))
    check_prompt_ids("messages", ids, service.vocab_size)
    return ids


def _num_logprobs(values: Mapping[str, Any]) -> int | None:
    if values.get("logprobs"):
        return int(values.get("top_logprobs", 0))
    if "top_logprobs" in values:
        raise InvalidParameterError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _max_tokens(values: Mapping[str, Any]) -> int | None:
    given = {values[name] for name in ("max_completion_tokens", "max_tokens") if name in values}
    if len(given) > 1:
        raise InvalidParameterError("max_tokens and max_completion_tokens contradict each other", param="max_tokens")
    return given.pop() if given else None


class ChatForm(Presenter):
    """Shows a job's deltas as chat completion objects."""

    event_object = "chat.completion.chunk"

    def __init__(self, job: Job, texts: TokenTexts, *, created: int, fingerprint: str) -> None:
        super().__init__(job, texts, created=created, fingerprint=fingerprint)
        self._is_plain = job.num_logprobs is None and not job.returns_token_ids

    def chunk(self, prompt_idx: int, delta: Delta) -> bytes:
        """Show a delta as events; nothing when it has nothing to show.

        The first news of a choice are preceded by its role, the last ones followed by its finish reason.
        """
        index = prompt_idx * self._job.num_choices + delta.choice
        if not (delta.text or delta.token_ids or delta.finish_reason):
            return b""
        opening = b"" if index in self._begun else self._opening(index, prompt_idx)
        if self._is_plain:
            middle = self._plain_chunk(index, delta.text) if delta.text else b""
        else:
            middle = self._full_chunk(index, delta) if delta.token_ids or delta.text else b""
        if delta.finish_reason is None:
            return opening + middle
        return opening + middle + self._closing(index, delta)

    def whole(self, drawn: Sequence[Sequence[Collected]], usage: Usage) -> bytes:
        """Show all answers as one object.

        Args:
            drawn: Per prompt (one), every drawn answer.
            usage: What they cost.
        """
        job, answers = self._job, drawn[0]
        best = best_answers(answers, job.num_choices)
        whole = ChatCompletion(
            id=job.job_id,
            created=self._created,
            model=job.model,
            system_fingerprint=self._fingerprint,
            choices=[self._choice(index, answer) for index, answer in enumerate(best)],
            usage=usage,
        )
        if job.num_prompt_logprobs is not None:
            known = next((a.prompt_logprobs for a in answers if a.prompt_logprobs), [])
            whole.prompt_logprobs = self._texts.prompt_entries(known, job.num_prompt_logprobs)
        if job.returns_token_ids:
            whole.prompt_token_ids = job.prompts[0].ids
        return encode(whole)

    def _choice(self, index: int, answer: Collected) -> ChatChoice:
        choice = ChatChoice(
            index=index,
            message=ChatAnswer(content=answer.text),
            logprobs=self._logprobs(answer.logprobs),
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
        )
        if self._job.returns_token_ids:
            choice.token_ids = answer.token_ids
        return choice

    def _opening(self, index: int, prompt_idx: int) -> bytes:
        self._begun.add(index)
        role = {"role": "assistant", "content": ""}
        choice: dict[str, Any] = {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        if not self._job.returns_token_ids:
            return self._event(choice)
        return self._event(choice, b',"prompt_token_ids":' + encode(self._job.prompts[prompt_idx].ids))

    def _plain_chunk(self, index: int, text: str) -> bytes:
        start = self._head + b'{"index":%d,"delta":{"content":' % index
        return start + encode(text) + b'},"logprobs":null,"finish_reason":null}]}\n\n'

    def _full_chunk(self, index: int, delta: Delta) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs(delta.logprobs or ()),
            "finish_reason": None,
        }
        if self._job.returns_token_ids:
            choice["token_ids"] = delta.token_ids
        return self._event(choice)

    def _closing(self, index: int, delta: Delta) -> bytes:
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": delta.finish_reason,
                  "stop_reason": delta.stop_reason}  # fmt: skip
        return self._event(choice)

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        num_top = self._job.num_logprobs
        if num_top is None:
            return None
        return ChatLogprobs([self._texts.chat_entry(entry, num_top) for entry in entries])
