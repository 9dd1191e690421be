"""Running a job: all its prompts through the engine, merged, counted, collected.

::

    prompt 0 ── submit ──► deltas of choices 0..k-1 ─╮
    prompt 1 ── submit ──► deltas of choices 0..k-1 ─┼─► (prompt index, delta), in order of arrival
    prompt 2 ── submit ──► deltas of choices 0..k-1 ─╯
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from trivium.base.errors import EngineDeadError, InvalidParameterError
from trivium.base.ids import FinishReason
from trivium.config.chat_output import ChatOutput
from trivium.config.structured import KINDS
from trivium.engine.messages import Delta
from trivium.grammar.parts import OutputPart
from trivium.sampling.batch import TokenLogprobs
from trivium.server.errors import AnswerAbortedError, AnswerFailedError
from trivium.server.job import Job
from trivium.server.ports import EnginePort
from trivium.server.shapes import CompletionTokensDetails, PromptTokensDetails, Usage


def run_job(
    engine: EnginePort, job: Job, on_news: Callable[[Delta], bool] | None = None
) -> AsyncGenerator[tuple[int, Delta], None]:
    """Yield the news of a job's answers as (prompt index, delta) until all have ended.

    A job of one prompt offers what comes while the reader waits to `on_news` first, see `EnginePort.submit`.

    Closing the generator, or cancelling the task that waits for it, aborts what is still open.

    Raises:
        TriviumError: A prompt was refused, the engine died, or an answer failed. Nothing but empty deltas has been
            yielded before the engine has accepted every prompt.
    """
    return _one_prompt(engine, job, 0, on_news) if len(job.prompts) == 1 else _all_prompts(engine, job)


async def _one_prompt(
    engine: EnginePort, job: Job, prompt_idx: int, on_news: Callable[[Delta], bool] | None = None
) -> AsyncGenerator[tuple[int, Delta], None]:
    prompt = job.prompts[prompt_idx]
    num_open = job.num_draws
    stream = engine.submit(
        prompt.ids,
        prompt.params,
        request_id=job.request_id(prompt_idx),
        cache_salt=job.cache_salt,
        priority=job.priority,
        tenant=job.tenant,
        program=job.program,
        deadline_s=job.timeout_s,
        adapter=job.adapter,
        on_news=on_news,
    )
    async with _closing(stream), _naming_fields(job):
        async for delta in stream:
            if delta.finish_reason is not None:
                check_end(delta)
                num_open -= 1
            yield prompt_idx, delta
    if num_open:
        raise EngineDeadError("the engine ended the stream before the answer was complete")


def check_end(delta: Delta) -> None:
    """Raise the error that an answer ended with, if it did.

    Raises:
        AnswerFailedError: The engine met an error.
        AnswerAbortedError: The engine ended the answer early.
    """
    if delta.finish_reason == FinishReason.ERROR:
        told = delta.error or "the engine ended the answer"
        raise AnswerFailedError(told, code=delta.error_code, retry_after_s=delta.retry_after_s)
    if delta.finish_reason == FinishReason.ABORT:
        raise AnswerAbortedError("the engine ended the answer early")


async def _all_prompts(engine: EnginePort, job: Job) -> AsyncGenerator[tuple[int, Delta], None]:
    arrivals: asyncio.Queue[tuple[int, Delta] | BaseException | None] = asyncio.Queue()

    async def pump(prompt_idx: int) -> None:
        try:
            async with contextlib.aclosing(_one_prompt(engine, job, prompt_idx)) as source:
                async for item in source:
                    arrivals.put_nowait(item)
        except Exception as error:
            arrivals.put_nowait(error)
        else:
            arrivals.put_nowait(None)

    pumps = [asyncio.create_task(pump(prompt_idx)) for prompt_idx in range(len(job.prompts))]
    try:
        async for item in _held_until_accepted(arrivals, len(pumps)):
            yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _held_until_accepted(
    arrivals: asyncio.Queue[tuple[int, Delta] | BaseException | None], num_prompts: int
) -> AsyncIterator[tuple[int, Delta]]:
    """Hold news back until every prompt was accepted, so that a refusal is still an answer of its own."""
    held: list[tuple[int, Delta]] = []
    unheard = set(range(num_prompts))
    num_open = num_prompts
    while num_open:
        item = await arrivals.get()
        if isinstance(item, BaseException):
            raise item
        if item is None:
            num_open -= 1
            continue
        unheard.discard(item[0])
        held.append(item)
        if not unheard:
            for known in held:
                yield known
            held.clear()


@contextlib.asynccontextmanager
async def _naming_fields(job: Job) -> AsyncIterator[None]:
    """Name the request's own field in the refusal of a constraint."""
    try:
        yield
    except InvalidParameterError as error:
        if job.constraint_field is None or error.param not in KINDS:
            raise
        raise InvalidParameterError(f"{job.constraint_field}: {error}", param=job.constraint_field) from None


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[Delta]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


class Counts:
    """Tokens of a job as they arrive."""

    def __init__(self, job: Job) -> None:
        self._prompt_tokens = job.prompt_tokens
        self._cached = [0] * len(job.prompts)
        self.completion_tokens = 0
        self._output = job.chat_output
        self._reasoning: dict[tuple[int, int], ReasoningCount] = {}
        """By prompt and choice."""

    def add(self, prompt_idx: int, delta: Delta) -> None:
        """Count a delta."""
        self.completion_tokens += len(delta.token_ids)
        if delta.parts is not None:
            key = (prompt_idx, delta.choice)
            if key not in self._reasoning:
                self._reasoning[key] = ReasoningCount.of(self._output)
            self._reasoning[key].add(delta)
        if delta.choice == 0 and delta.cached_len:
            # Later choices find the first one's prompt in the cache; the client is told what the prompt itself found.
            self._cached[prompt_idx] = delta.cached_len

    def usage(self) -> Usage:
        """Say what the job has cost so far."""
        total = self._prompt_tokens + self.completion_tokens
        found = PromptTokensDetails(sum(self._cached))
        return Usage(self._prompt_tokens, self.completion_tokens, total, found, self._reasoned())

    def _reasoned(self) -> CompletionTokensDetails | UnsetType:
        if self._output is None or self._output.reasoning_dialect is None:
            return UNSET
        return CompletionTokensDetails(sum(each.num_tokens for each in self._reasoning.values()))


@dataclass(slots=True)
class ReasoningCount:
    """Tokens of an answer's reasoning as they arrive: those with which reasoning came, or after which it goes on."""

    is_reasoning: bool = False
    """Whether the last part was reasoning."""
    num_tokens: int = 0

    @classmethod
    def of(cls, output: ChatOutput | None) -> ReasoningCount:
        """Begin with an answer that is split in this way."""
        return cls(output is not None and output.starts_in_reasoning)

    def add(self, delta: Delta) -> None:
        """Count the tokens of a delta with parts."""
        kinds = [part.kind for part in delta.parts or ()]
        if "reasoning" in kinds if kinds else self.is_reasoning:
            self.num_tokens += len(delta.token_ids)
        if kinds:
            self.is_reasoning = kinds[-1] == "reasoning"


@dataclass(slots=True)
class Collected:
    """One whole answer."""

    texts: list[str] = field(default_factory=list)
    parts: list[OutputPart] | None = None
    """What the text means, where that is told."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float = 0.0
    cached_len: int = 0
    """Prompt tokens that it found in the cache."""
    reasoning: ReasoningCount = field(default_factory=ReasoningCount)

    def add(self, delta: Delta) -> None:
        """Append the news of a delta."""
        self.texts.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        if delta.parts is not None:
            self.parts = self.parts or []
            self.parts.extend(delta.parts)
            self.reasoning.add(delta)
        if delta.logprobs is not None:
            self.logprobs.extend(delta.logprobs)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.cumulative_logprob = delta.cumulative_logprob
        self.cached_len = delta.cached_len or self.cached_len

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self.texts)

    @property
    def mean_logprob(self) -> float:
        """Logprob per token, by which `best_of` ranks."""
        return self.cumulative_logprob / max(1, len(self.token_ids))


def new_collection(job: Job) -> list[list[Collected]]:
    """Make room for every answer: per prompt, per draw."""
    return [
        [Collected(reasoning=ReasoningCount.of(job.chat_output)) for _ in range(job.num_draws)] for _ in job.prompts
    ]


def best_answers(drawn: Sequence[Collected], num_choices: int) -> list[Collected]:
    """Return the `num_choices` most likely answers per token, best first; all in order when none is left out."""
    if len(drawn) == num_choices:
        return list(drawn)
    return sorted(drawn, key=lambda answer: answer.mean_logprob, reverse=True)[:num_choices]
