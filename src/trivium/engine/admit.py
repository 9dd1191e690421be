"""From a `Submit` to the `Request`s of its choices: everything that can be refused is refused here.

A submitted request becomes one `Request` per choice. Choices share prompt, seed and namespace; they differ in `choice`,
which is part of the random key. Tokens that an earlier engine delivered (replay) are appended to the prompt, and the
automaton reads them, so that the stream goes on where it stopped; choices that had ended make no request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trivium.base.errors import InvalidParameterError, PromptTooLongError, UnsupportedFeatureError, ensure
from trivium.base.ids import RequestId, TokenId
from trivium.cache.retain import RetentionPlan
from trivium.grammar.automaton import OutputAutomaton
from trivium.grammar.constraint import binds_content
from trivium.grammar.part_reader import PartReader
from trivium.grammar.reasoning_budget import ReasoningBudget
from trivium.grammar.stops import StopConditions
from trivium.sampling.batch import SampleRow
from trivium.schedule.request import Request

if TYPE_CHECKING:
    from trivium.config.sampling import LogprobsMode, SamplingParams
    from trivium.engine.adapters import HeldAdapter
    from trivium.engine.messages import Delivered, Submit
    from trivium.grammar.matcher import Grammar
    from trivium.sampling.batch import TokenLogprobs
    from trivium.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a loaded model allows, and what belongs to its cache namespace."""

    vocab_size: int
    max_model_len: int
    end_ids: tuple[int, ...]
    """The model's own end tokens."""
    namespace: tuple[Hashable, ...]
    """Checkpoint fingerprint and KV dtype."""
    rope_variant: Callable[[int], Hashable]
    """Rope table that a request of this reach (longest possible length) uses."""
    bad_word_ids: Callable[[str], Sequence[Sequence[int]]]
    """Token spellings of a text that may not be generated."""
    logprobs_mode: LogprobsMode = "raw"
    eviction: str = "lru"
    """Policy of the prefix cache; only `priority` heeds what requests say of retention."""
    page_len: int = 16
    """Tokens per KV page."""
    takes_priority: bool = False
    """Whether requests are ordered by priority."""
    jump_forward: bool = True
    """Whether tokens that a grammar forces are taken without being drawn."""

    def namespace_of(
        self, *, cache_salt: str, limit_len: int, weight_generation: int = 0, adapter: HeldAdapter | None = None
    ) -> tuple[Hashable, ...]:
        """Return the cache namespace of a request whose longest possible length is `limit_len`."""
        own = () if adapter is None else adapter.namespace
        return (*self.namespace, weight_generation, cache_salt, self.rope_variant(limit_len), *own)


@dataclass(slots=True, kw_only=True)
class Answer:
    """The engine's view of one running choice."""

    request: Request
    user_id: str
    automaton: OutputAutomaton
    draw_row: SampleRow
    """The row from which the next token is drawn; moved on from step to step, so that a step makes no records."""
    prompt_logprobs: dict[int, TokenLogprobs | None] = field(default_factory=dict)
    """Position to logprobs, filled while the prompt runs; `None` for position 0."""
    is_prompt_reported: bool = False
    num_told: int = 0
    """Tokens that have been read and told; of those that the request has, the last may be still to be read."""
    is_closed: bool = False
    """Whether its last delta has been written, or it was aborted."""
    cumulative_logprob: float = 0.0
    told_cached_len: int | None = None
    """What an earlier engine told of the cache, which stays true of the answer."""
    deadline_at_s: float | None = None
    jumps: bool = False
    """Whether it takes the tokens that a grammar forces without drawing them."""


def admit(
    message: Submit, limits: ModelLimits, tokenizer: Tokenizer, *, now_s: float, adapter: HeldAdapter | None = None
) -> list[Answer]:
    """Check a submitted request and make the answers of its open choices, in order; see also `constrain`.

    Args:
        message: The request.
        limits: What the model allows.
        tokenizer: Knows the bytes of ids.
        now_s: On the engine's clock.
        adapter: The one that the message names.

    Raises:
        RequestError: A token id, parameter or length is refused; the message says which and why.
        InternalError: No choice is open, or an answer had ended before the last token that was delivered of it.
    """
    params = message.params
    params.validate(vocab_size=limits.vocab_size)
    _check_prompt(message.prompt_ids, limits)
    _check_scored_start(params, len(message.prompt_ids))
    if message.priority and not limits.takes_priority:
        raise UnsupportedFeatureError(
            f"priority is {message.priority}; this server does not order by priority, so it must be 0 (start it with "
            "--order priority)",
            param="priority",
        )
    if message.program is not None:
        message.program.validate()
    retention = _retention(params, len(message.prompt_ids), limits)
    limit_len = _limit_len(len(message.prompt_ids), params, limits.max_model_len)
    filled = replace(params, seed=params.seed or 0, logprobs_mode=params.logprobs_mode or limits.logprobs_mode)
    bad_word_ids = tuple(tuple(map(TokenId, ids)) for word in params.bad_words for ids in limits.bad_word_ids(word))
    stops = StopConditions(params.stop, params.stop_regex)
    reader, budget = _of_chat(params, tokenizer, limits)
    namespace = limits.namespace_of(
        cache_salt=message.cache_salt,
        limit_len=limit_len,
        weight_generation=message.weight_generation,
        adapter=adapter,
    )
    end_ids = _end_ids(params, limits)
    arrival_s = now_s - message.waited_s
    answers: list[Answer] = []
    for choice in range(params.num_draws):
        told = message.delivered[choice] if choice < len(message.delivered) else None
        if told is not None and told.is_finished:
            continue
        is_scored = choice == 0 and not (told is not None and told.token_ids)
        own = filled if is_scored else replace(filled, prompt_logprobs=None)
        request = Request(
            request_id=RequestId(message.request_id if choice == 0 else f"{message.request_id}#{choice}"),
            choice=choice,
            prompt_len=len(message.prompt_ids),
            params=own,
            end_ids=end_ids,
            namespace=namespace,
            limit_len=limit_len,
            arrival_s=arrival_s,
            priority=message.priority,
            retention=retention,
            tenant=message.tenant,
            share=message.program,
            adapter=adapter,
            tokens=[TokenId(token) for token in message.prompt_ids],
        )
        automaton = OutputAutomaton(tokenizer, own, end_ids, stops=stops, part_reader=reader, budget=budget)
        answer = _answer(message, request, automaton, bad_word_ids)
        answer.jumps = limits.jump_forward and not _needs_every_row(params)
        if told is not None:
            _continue(answer, told)
        answers.append(answer)
    ensure(answers, f"{message.request_id} has no open choice")
    return answers


def _of_chat(
    params: SamplingParams, tokenizer: Tokenizer, limits: ModelLimits
) -> tuple[PartReader | None, ReasoningBudget | None]:
    """Return what reads the parts of a chat's answer, and what ends its reasoning in time."""
    chat = params.chat_output
    if chat is None:
        return None, None
    reader = PartReader(chat, content_is_bound=binds_content(params))
    return reader, None if chat.max_reasoning_tokens is None else ReasoningBudget(chat, tokenizer, limits.vocab_size)


def _answer(
    message: Submit, request: Request, automaton: OutputAutomaton, bad_word_ids: tuple[tuple[TokenId, ...], ...]
) -> Answer:
    request.automaton = automaton
    return Answer(
        request=request,
        user_id=message.request_id,
        automaton=automaton,
        draw_row=SampleRow(
            params=request.params,
            choice=request.choice,
            position=len(request.tokens),
            tokens=request.tokens,
            prompt_len=request.prompt_len,
            bad_word_ids=bad_word_ids,
            num_logprobs=request.params.logprobs,
        ),
        deadline_at_s=None if message.deadline_s is None else request.arrival_s + message.deadline_s,
    )


def constrain(answer: Answer, grammar: Grammar, end_len: int) -> None:
    """Put an admitted answer under its grammar, and let it begin with what that forces.

    Args:
        answer: Not queued yet.
        grammar: That of the request's constraint.
        end_len: Tokens with which the answer ends at the latest. The last one is drawn, whatever is forced.

    Raises:
        InternalError: What was delivered of the answer is against the grammar, or that has grown beyond its limits.
    """
    request, automaton = answer.request, answer.automaton
    automaton.constrain(grammar.start(), request.tokens[request.prompt_len :])
    if answer.jumps:
        jumped, is_end = automaton.jump(end_len - len(request.tokens) - 1)
        if is_end:
            automaton.untake(1)
            jumped.pop()
        request.tokens += jumped


def _needs_every_row(params: SamplingParams) -> bool:
    """Return whether even a token that is the only one must be drawn: for its logprob, or since it may be forbidden."""
    return params.logprobs is not None or params.best_of is not None or bool(params.bad_words)


def _continue(answer: Answer, told: Delivered) -> None:
    """Bring a new answer to where an earlier engine had brought it."""
    if not told.token_ids:
        return
    answer.request.num_delivered = len(told.token_ids)
    answer.request.tokens.extend(map(TokenId, told.token_ids))
    answer.automaton.replay(told.token_ids)
    answer.draw_row.position = len(answer.request.tokens)
    answer.num_told = len(told.token_ids)
    answer.cumulative_logprob = told.cumulative_logprob
    answer.told_cached_len = told.cached_len
    answer.is_prompt_reported = True


def _retention(params: SamplingParams, prompt_len: int, limits: ModelLimits) -> RetentionPlan | None:
    ranges, decode = params.cache_retention, params.cache_retention_decode
    if not ranges and decode is None:
        return None
    if limits.eviction != "priority":
        name = "cache_retention" if ranges else "cache_retention_decode"
        raise UnsupportedFeatureError(
            f"{name} needs a server started with --eviction priority; this one evicts by '{limits.eviction}'",
            param=name,
        )
    return RetentionPlan(ranges, decode, prompt_len=prompt_len, page_len=limits.page_len)


def _check_prompt(prompt_ids: Sequence[int], limits: ModelLimits) -> None:
    if not prompt_ids:
        raise InvalidParameterError("the prompt has no tokens; give at least one", param="prompt")
    low, high = min(prompt_ids), max(prompt_ids)
    if low < 0 or high >= limits.vocab_size:
        outside = low if low < 0 else high
        raise InvalidParameterError(
            f"prompt token id {outside} is outside the vocabulary, 0 to {limits.vocab_size - 1}", param="prompt"
        )


def _check_scored_start(params: SamplingParams, prompt_len: int) -> None:
    if params.prompt_logprob_start >= prompt_len:
        raise InvalidParameterError(
            f"prompt_logprob_start is {params.prompt_logprob_start}; the prompt has {prompt_len} tokens, so it must be "
            f"at most {prompt_len - 1}",
            param="prompt_logprob_start",
        )


def _limit_len(prompt_len: int, params: SamplingParams, max_model_len: int) -> int:
    """Length at which the answer must end.

    Raises:
        PromptTooLongError: Prompt and requested output exceed the context.
    """
    if params.max_tokens is None:
        if prompt_len >= max_model_len:
            raise PromptTooLongError(
                f"the prompt has {prompt_len} tokens; the context of {max_model_len} tokens leaves no room for an "
                f"answer. Shorten the prompt to at most {max_model_len - 1} tokens",
                param="prompt",
            )
        return max_model_len
    limit_len = prompt_len + params.max_tokens
    if limit_len > max_model_len:
        raise PromptTooLongError(
            f"the prompt has {prompt_len} tokens and max_tokens is {params.max_tokens}: {limit_len} together, more "
            f"than the context of {max_model_len} tokens. Shorten the prompt or lower max_tokens",
            param="prompt" if prompt_len > max_model_len else "max_tokens",
        )
    return limit_len


def _end_ids(params: SamplingParams, limits: ModelLimits) -> tuple[TokenId, ...]:
    own = () if params.ignore_eos else limits.end_ids
    return tuple(TokenId(token) for token in dict.fromkeys((*own, *params.stop_token_ids)))
