"""`Job`: an HTTP request for text, parsed and checked, ready for the engine.

Built by `completions.parse` and `chat.parse`; run by `generate`; shown by `completions.CompletionForm` and
`chat.ChatForm`. A job has P prompts and draws `params.num_draws` answers to each, of which `params.n` are returned.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trivium.base.errors import InvalidParameterError, PromptTooLongError, UnsupportedFeatureError
from trivium.config.sampling import SamplingParams
from trivium.server.fields import MAX_SHOWN_CHARS, is_count, root_field
from trivium.server.tables import SAMPLING_FIELDS

INT63 = (1 << 63) - 1
MAX_ANSWERS = 1024
"""Most answers that one request may draw: prompts x max(n, best_of)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt and how it is sampled."""

    ids: list[int]
    text: str = ""
    """Shown before the answers when the prompt is echoed."""
    params: SamplingParams
    """The job's, with `max_tokens` fitted to this prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that running and showing a request needs."""

    job_id: str
    model: str
    """The name that the client used."""
    prompts: Sequence[Prompt]
    num_choices: int
    """Answers returned per prompt (`n`)."""
    num_draws: int
    """Answers drawn per prompt, at least `num_choices`."""
    is_stream: bool = False
    includes_usage: bool = False
    """Whether a stream ends with a usage chunk."""
    is_echo: bool = False
    num_logprobs: int | None = None
    """Alternatives to report per token of the answer; `None` reports no logprobs."""
    num_prompt_logprobs: int | None = None
    """Alternatives to report in the `prompt_logprobs` extension."""
    returns_token_ids: bool = False
    skip_special_tokens: bool = True
    cache_salt: str = ""
    timeout_s: float | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    def request_id(self, prompt_idx: int) -> str:
        """Name of a prompt's request in the engine."""
        return self.job_id if len(self.prompts) == 1 else f"{self.job_id}-{prompt_idx}"


def new_job_id(prefix: str) -> str:
    """Return an id that no other request has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def sampling_params(
    values: Mapping[str, Any], *, defaults: Mapping[str, Any], vocab_size: int, **derived: Any
) -> SamplingParams:
    """Make the sampler's record from the request's fields.

    Args:
        values: Honoured fields that were given.
        defaults: The model's own, for fields that were not.
        vocab_size: Token ids from here on are refused.
        derived: Fields that the endpoint computes (`logprobs`, `prompt_logprobs`, `max_tokens`).

    Raises:
        InvalidParameterError: A value is outside its limits, or two contradict each other.
    """
    given = {name: values[name] for name in SAMPLING_FIELDS if name in values}
    params = SamplingParams(**{**defaults, **given, **derived})
    params.validate(vocab_size=vocab_size)
    return params


def check_answers(num_prompts: int, params: SamplingParams) -> None:
    """Bound what one request may start.

    Raises:
        InvalidParameterError: It would draw too many answers.
    """
    if num_prompts * params.num_draws > MAX_ANSWERS:
        raise InvalidParameterError(
            f"{num_prompts} prompts with {params.num_draws} answers each are {num_prompts * params.num_draws} answers; "
            f"one request may draw at most {MAX_ANSWERS}",
            param="n",
        )


def check_stream(values: Mapping[str, Any], params: SamplingParams) -> None:
    """Refuse what contradicts `stream`, or cannot be streamed.

    Raises:
        InvalidParameterError: `stream_options` without a stream.
        UnsupportedFeatureError: Answers would have to be ranked, or prompts scored, before the first event.
    """
    if not values.get("stream"):
        if "stream_options" in values:
            raise InvalidParameterError("stream_options needs stream to be true", param="stream_options")
        return
    if params.num_draws > params.n:
        raise UnsupportedFeatureError(
            "best_of above n cannot be streamed: answers are ranked when all have ended", param="best_of"
        )
    if "prompt_logprobs" in values:
        raise UnsupportedFeatureError("prompt_logprobs cannot be streamed", param="prompt_logprobs")


def fit_to_context(
    params: SamplingParams, prompt_len: int, *, context_len: int, default: int | None, param: str
) -> SamplingParams:
    """Check that prompt and answer fit the context, and fill in `max_tokens` where it was not given.

    Args:
        params: The request's, `max_tokens` as the client gave it.
        prompt_len: Tokens of the prompt.
        context_len: Longest prompt plus answer in tokens.
        default: Answer length when none was asked for; `None` means up to the context's end.
        param: Field to name when the prompt alone is too long.

    Raises:
        PromptTooLongError: They do not fit; the message has the limit and both counts.
    """
    asked = params.max_tokens
    room = context_len - prompt_len
    least = 1 if asked is None else asked
    if least > room:
        wanted = f" and {asked} tokens were asked for" if asked else " and the answer needs at least 1"
        counts = f"the prompt has {prompt_len} tokens{wanted if asked != 0 else ''}"
        raise PromptTooLongError(
            # LiteLLM looks for "maximum context length" in this text, LangChain for "prompt is too long".
            f"This model's maximum context length is {context_len} tokens and the prompt is too long for it: "
            f"{counts}. Please shorten the prompt or ask for fewer tokens.",
            param=param if room < 1 else "max_tokens",
        )
    if asked is not None:
        return params
    if default is None:
        return replace(params, max_tokens=room)
    return replace(params, max_tokens=min(max(default, params.min_tokens), room))


def check_prompt_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Check that there are ids and that all are in the vocabulary.

    Raises:
        InvalidParameterError: There are none, or one is outside.
    """
    if not ids:
        raise InvalidParameterError(f"{name} is empty; at least one token is needed", param=root_field(name))
    for token_id in ids:
        if not is_count(token_id, -INT63, INT63):
            raise InvalidParameterError(
                f"{name} has {repr(token_id)[:MAX_SHOWN_CHARS]}, which is no token id", param=root_field(name)
            )
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise InvalidParameterError(
            f"{name} has token id {wrong}; ids of this model are 0 to {vocab_size - 1}", param=root_field(name)
        )
