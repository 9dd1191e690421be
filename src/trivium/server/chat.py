"""`/v1/chat/completions`: from body to `Job`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.server.chat_prompt import chat_prompt
from trivium.server.job import (
    Job,
    Prompt,
    check_answers,
    check_stream,
    fit_to_context,
    new_job,
    sampling_params,
)
from trivium.server.service import Service
from trivium.server.tables import CHAT


async def parse(service: Service, body: Mapping[str, Any]) -> Job:
    """Turn a body into a job.

    Raises:
        RequestError: A field is refused, the template refuses the messages, or the prompt does not fit.
    """
    model = service.choose_model(body.get("model"))
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
    prompt = await chat_prompt(service, values)
    if prompt.output is not None:
        params = replace(params, chat_output=prompt.output)
    fitted = fit_to_context(params, len(prompt.ids), context_len=service.context_len, default=None, param="messages")
    prompts = [Prompt(ids=prompt.ids, params=fitted)]
    return new_job(
        "chatcmpl",
        values,
        params,
        model=model,
        prompts=prompts,
        num_logprobs=num_logprobs,
        num_earlier_calls=prompt.num_calls,
    )


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
