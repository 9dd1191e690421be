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
from trivium.config.chat_output import ChatOutput
from trivium.config.program_share import ProgramShare
from trivium.config.sampling import SamplingParams
from trivium.server.constraint_fields import constraint_field, constraint_of
from trivium.server.fields import MAX_SHOWN_CHARS, is_count, root_field
from trivium.server.served import ModelChoice
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
class GenerateShape:
    """How `/generate` shows its answers, besides what is common to all."""

    is_list: bool = False
    """Whether there is a list of answers, because there was a list of prompts or several answers were asked for."""
    is_incremental: bool = False
    """Whether an event of a stream has what is new, instead of everything so far."""
    logprob_start: int = -1
    """First prompt position that has an entry among the logprobs; -1: none has."""
    has_texts: bool = False
    """Whether logprobs come with the texts of their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that running and showing a request needs."""

    job_id: str
    model: str
    """The name that the client used."""
    adapter: str | None = None
    """That name, where it is an adapter's."""
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
    priority: int = 0
    tenant: str = ""
    """Who asks, for fair shares: the name of the API key, or the request's `user` where there are no keys."""
    program: ProgramShare | None = None
    """The program to which its requests belong, if they do."""
    timeout_s: float | None = None
    constraint_field: str | None = None
    """Field in which the answer's form was asked for."""
    chat_output: ChatOutput | None = None
    """What an answer is split into; `None`: it is plain text."""
    includes_reasoning: bool = True
    """Whether reasoning is reported where it is split off."""
    num_earlier_calls: int = 0
    """Tool calls of the conversation's history."""
    shape: GenerateShape = GenerateShape()
    """What only `/generate` looks at."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(prompt.ids) for prompt in self.prompts)

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Names of its requests in the engine."""
        return tuple(self.request_id(idx) for idx in range(len(self.prompts)))

    def request_id(self, prompt_idx: int) -> str:
        """Name of a prompt's request in the engine."""
        return self.job_id if len(self.prompts) == 1 else f"{self.job_id}-{prompt_idx}"


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
    constraint = constraint_of(values)
    params = SamplingParams(**{**defaults, **given, **derived, "structured_outputs": constraint})
    params.validate(vocab_size=vocab_size)
    return params


def new_job(
    prefix: str,
    values: Mapping[str, Any],
    params: SamplingParams,
    *,
    model: ModelChoice,
    prompts: Sequence[Prompt],
    num_logprobs: int | None,
    is_echo: bool = False,
    num_earlier_calls: int = 0,
) -> Job:
    """Put a job together, with an id that no other request has.

    Args:
        prefix: How the id begins.
        values: Honoured fields that were given.
        params: The sampler's record before it was fitted to a prompt.
        model: What the client's name means.
        prompts: At least one.
        num_logprobs: Alternatives to report per token of the answer.
        is_echo: Whether answers begin with their prompt.
        num_earlier_calls: Tool calls of the conversation's history.
    """
    return Job(
        job_id=f"{prefix}-{uuid.uuid4().hex}",
        model=model.name,
        adapter=model.adapter,
        prompts=prompts,
        num_choices=params.n,
        num_draws=params.num_draws,
        is_stream=values.get("stream", False),
        includes_usage=values.get("stream_options", False),
        is_echo=is_echo,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=values.get("prompt_logprobs"),
        returns_token_ids=values.get("return_token_ids", False),
        skip_special_tokens=params.skip_special_tokens,
        cache_salt=values.get("cache_salt", ""),
        priority=values.get("priority", 0),
        program=values.get("program"),
        timeout_s=values.get("timeout_s"),
        constraint_field=constraint_field(values),
        chat_output=params.chat_output,
        includes_reasoning=values.get("include_reasoning", True),
        num_earlier_calls=num_earlier_calls,
    )


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
        raise PromptTooLongError(
            _too_long(prompt_len, asked, context_len=context_len), param=param if room < 1 else "max_tokens"
        )
    if asked is not None:
        return params
    if default is None:
        return replace(params, max_tokens=room)
    return replace(params, max_tokens=min(max(default, params.min_tokens), room))


def _too_long(prompt_len: int, asked: int | None, *, context_len: int) -> str:
    """Say what does not fit; LiteLLM looks for "maximum context length" in it, LangChain for "prompt is too long"."""
    limit = f"This model's maximum context length is {context_len} tokens"
    if prompt_len > context_len or not asked:
        wanted = "" if asked == 0 or prompt_len > context_len else " and the answer needs at least 1"
        return f"{limit}; the prompt is too long: it has {prompt_len} tokens{wanted}. Please shorten the prompt."
    return (
        f"{limit}; the prompt is too long for the answer that was asked for: {prompt_len} tokens of prompt and "
        f"{asked} of answer are {prompt_len + asked} together. Please shorten the prompt or ask for fewer tokens."
    )


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
