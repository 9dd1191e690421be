"""Offline use: `LLM` runs the engine loop in the caller's process; `AsyncLLM` runs it in a thread.

>>> from trivium import LLM, SamplingParams
>>> with LLM("smollm2") as llm:                                                  # doctest: +SKIP
...     [answer] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
...     print(answer.outputs[0].text)
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trivium.base.errors import CapacityError, InvalidParameterError, TemplateError
from trivium.config.defaults import recommended_sampling
from trivium.config.resolve import options_from
from trivium.config.sampling import SamplingParams

if TYPE_CHECKING:
    from trivium.assembly import Frontend
    from trivium.engine.local import LocalEngine
    from trivium.engine.loop import EngineLoop
    from trivium.engine.messages import Delta
    from trivium.sampling.batch import TokenLogprobs

Prompt = str | Sequence[int]
"""Text, or token ids."""
Message = Mapping[str, Any]
"""A chat message: `role` and `content`."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    """One entry per token, when asked for."""
    cumulative_logprob: float | None = None
    """Sum of the tokens' raw logprobs; known with `logprobs` or `best_of`."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A prompt with its answers; with `best_of`, those of the highest mean logprob per token, best first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    num_cached_tokens: int = 0
    error: str | None = None
    """Why the request failed inside the engine; its answers hold what was generated before."""

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.finish_reason is not None for answer in self.outputs)


class Answers:
    """Gathers the deltas of one request into a `RequestOutput`."""

    def __init__(self, request_id: str, prompt: Prompt, prompt_ids: list[int], params: SamplingParams) -> None:
        self._params = params
        text = prompt if isinstance(prompt, str) else None
        wants_logprobs = params.logprobs is not None
        self.output = RequestOutput(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=prompt_ids,
            outputs=[
                CompletionOutput(index=k, logprobs=[] if wants_logprobs else None) for k in range(params.num_draws)
            ],
        )

    def add(self, news: Delta) -> None:
        """Append what a delta brings."""
        answer = self.output.outputs[news.choice]
        answer.text += news.text
        answer.token_ids.extend(news.token_ids)
        if news.logprobs is not None and answer.logprobs is not None:
            answer.logprobs.extend(news.logprobs)
        if news.prompt_logprobs is not None:
            self.output.prompt_logprobs = news.prompt_logprobs
        if news.choice == 0:
            self.output.num_cached_tokens = news.cached_len
        if news.finish_reason is not None:
            answer.finish_reason, answer.stop_reason = news.finish_reason, news.stop_reason
            self._sum_logprobs(answer, news)
        if news.error is not None:
            self.output.error = news.error

    def result(self) -> RequestOutput:
        """Return the request with its n best answers, numbered anew."""
        if self._params.num_draws > self._params.n:
            ranked = sorted(self.output.outputs, key=lambda answer: -_mean_logprob(answer))
            self.output.outputs = [replace(answer, index=k) for k, answer in enumerate(ranked[: self._params.n])]
        return self.output

    def _sum_logprobs(self, answer: CompletionOutput, news: Delta) -> None:
        if self._params.num_draws > self._params.n:
            answer.cumulative_logprob = news.cumulative_logprob
        elif answer.logprobs is not None:
            answer.cumulative_logprob = sum(entry.logprob for entry in answer.logprobs)


def _mean_logprob(answer: CompletionOutput) -> float:
    return (answer.cumulative_logprob or 0.0) / max(len(answer.token_ids), 1)


class _Prompts:
    """Turns what users write into token ids, with the model's tokenizer and chat template."""

    def __init__(self, frontend: Frontend) -> None:
        self.frontend = frontend
        self.tokenizer = frontend.tokenizer

    def ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, the start token added to text where the model wants one."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=True)
        return [int(token) for token in prompt]

    def chat_ids(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """Token ids of a conversation through the chat template.

        Raises:
            TemplateError: The model has no template, or it refuses the messages.
        """
        template = self.frontend.chat_template
        if template is None:
            raise TemplateError(f"{self.frontend.name} has no chat template; give one with chat_template=")
        text = template.render(list(messages), **variables)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def params(self, params: SamplingParams | None) -> SamplingParams:
        """The given parameters, or the model's recommended ones."""
        return params if params is not None else SamplingParams(**recommended_sampling(self.frontend.generation_config))


class LLM:
    """A model in this process.

    Options are those of `trivium serve`, by the same names: `LLM("smollm2", max_num_seqs=16, seed=0)`.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        """Find, fetch and load the model.

        Raises:
            ConfigError: An option is unknown or has a bad value.
            ModelError: The model cannot be found, fetched or understood.
        """
        from trivium.assembly import build_engine, load_frontend  # noqa: PLC0415  (start-up time)

        self.options = options_from({"model": model, **options})
        frontend = load_frontend(self.options)
        self._prompts = _Prompts(frontend)
        self._loop: EngineLoop | None = build_engine(self.options)
        self._seeds = random.Random(self.options.schedule.seed)  # noqa: S311  (sampling seeds, not secrets)
        self._next_id = 0

    @property
    def frontend(self) -> Frontend:
        """Name, configuration, tokenizer and chat template of the model."""
        return self._prompts.frontend

    @property
    def info(self) -> dict[str, object]:
        """What was loaded, and how."""
        return self._open_loop().info

    def default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when it is given none: the model's own recommendation."""
        return self._prompts.params(None)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Answer prompts; the answers are in the order of the prompts.

        Args:
            prompts: One prompt or many, each a text or a list of token ids.
            sampling_params: For all prompts, or one per prompt.
            use_tqdm: Whether to draw a progress bar.

        Raises:
            RequestError: A prompt or parameter is refused; no prompt was run.
        """
        many = _as_prompts(prompts)
        return self._run_all([(prompt, self._prompts.ids(prompt)) for prompt in many], sampling_params, bar=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template.

        Raises:
            TemplateError: The template refuses the messages, or there is none.
            RequestError: A parameter is refused.
        """
        conversations: list[Sequence[Message]] = (
            [messages] if messages and isinstance(messages[0], Mapping) else list(messages)  # type: ignore[list-item, arg-type]
        )
        prompts = [self._prompts.chat_ids(conversation, **template_variables) for conversation in conversations]
        return self._run_all([(ids, ids) for ids in prompts], sampling_params, bar=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[Delta]:
        """Answer one prompt and yield its news as it comes; leaving early aborts the request.

        Raises:
            RequestError: The prompt or a parameter is refused.
        """
        loop = self._open_loop()
        request_id = self._submit(self._prompts.ids(prompt), self._prompts.params(sampling_params))
        try:
            while request_id in loop.open_requests or loop.has_work:
                yield from (news for news in loop.step() if news.request_id == request_id)
        finally:
            loop.abort([request_id])

    def close(self) -> None:
        """Give back memory and threads; the object is not used afterwards."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_loop(self) -> EngineLoop:
        if self._loop is None:
            raise InvalidParameterError("this LLM is closed")
        return self._loop

    def _submit(self, prompt_ids: list[int], params: SamplingParams) -> str:
        from trivium.engine.messages import Submit  # noqa: PLC0415  (start-up time)

        if params.seed is None:
            params = replace(params, seed=self._seeds.getrandbits(63))
        request_id = f"llm-{self._next_id}"
        self._open_loop().submit(Submit(request_id=request_id, prompt_ids=prompt_ids, params=params))
        self._next_id += 1
        return request_id

    def _run_all(
        self,
        prompts: Sequence[tuple[Prompt, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        bar: bool,
    ) -> list[RequestOutput]:
        """Feed prompts as the queue takes them, run until all have ended."""
        loop = self._open_loop()
        all_params = self._params_per_prompt(sampling_params, len(prompts))
        for (_, ids), params in zip(prompts, all_params, strict=True):
            loop.refuse_early(ids, params)
        open_answers: dict[str, Answers] = {}
        ordered: list[Answers] = []
        try:
            with _progress(len(prompts), shown=bar) as advance:
                while len(ordered) < len(prompts) or open_answers:
                    self._feed(prompts, all_params, ordered, open_answers)
                    for news in loop.step():
                        answers = open_answers.get(news.request_id)
                        if answers is None:
                            continue
                        answers.add(news)
                        if answers.output.finished:
                            del open_answers[news.request_id]
                            advance()
        finally:
            loop.abort(open_answers)
        return [answers.result() for answers in ordered]

    def _feed(
        self,
        prompts: Sequence[tuple[Prompt, list[int]]],
        all_params: Sequence[SamplingParams],
        ordered: list[Answers],
        open_answers: dict[str, Answers],
    ) -> None:
        """Submit further prompts until the queue is full."""
        while len(ordered) < len(prompts):
            prompt, ids = prompts[len(ordered)]
            params = all_params[len(ordered)]
            try:
                request_id = self._submit(ids, params)
            except CapacityError:
                return
            ordered.append(Answers(request_id, prompt, ids, params))
            open_answers[request_id] = ordered[-1]

    def _params_per_prompt(
        self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [self._prompts.params(given)] * num_prompts
        if len(given) != num_prompts:
            raise InvalidParameterError(
                f"there are {num_prompts} prompts and {len(given)} sampling_params; give one, or one per prompt",
                param="sampling_params",
            )
        return list(given)


class AsyncLLM:
    """A model in a thread of this process, for asyncio programs.

    >>> async with AsyncLLM("smollm2") as llm:                                   # doctest: +SKIP
    ...     async for news in llm.generate("Once upon a time"):
    ...         print(news.text, end="")
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        """Remember what to load; entering the context loads it.

        Raises:
            ConfigError: An option is unknown or has a bad value.
        """
        self.options = options_from({"model": model, **options})
        self._engine: LocalEngine | None = None
        self._prompts: _Prompts | None = None

    async def start(self) -> None:
        """Load the model and start its thread.

        Raises:
            ModelError: The model cannot be found, fetched or understood.
        """
        import asyncio  # noqa: PLC0415  (start-up time)

        from trivium.assembly import build_engine, load_frontend  # noqa: PLC0415
        from trivium.engine.local import LocalEngine  # noqa: PLC0415

        self._prompts = _Prompts(await asyncio.to_thread(load_frontend, self.options))
        loop = await asyncio.to_thread(build_engine, self.options)
        self._engine = LocalEngine(loop, seed=self.options.schedule.seed)
        await self._engine.start()

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> AsyncIterator[Delta]:
        """Answer one prompt and yield its news; leaving early aborts the request.

        Raises:
            InvalidParameterError: The model is not loaded (use `async with`, or `start`).
            RequestError: The prompt or a parameter is refused.
        """
        engine, prompts = self._open()
        return engine.submit(prompts.ids(prompt), prompts.params(sampling_params), request_id=request_id)

    def chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, **template_variables: Any
    ) -> AsyncIterator[Delta]:
        """Answer a conversation and yield its news.

        Raises:
            TemplateError: The template refuses the messages, or there is none.
        """
        engine, prompts = self._open()
        return engine.submit(prompts.chat_ids(messages, **template_variables), prompts.params(sampling_params))

    async def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        engine, _ = self._open()
        await engine.abort(request_id)

    async def close(self) -> None:
        """Stop the thread and give back memory."""
        if self._engine is not None:
            await self._engine.close()
            self._engine = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> tuple[LocalEngine, _Prompts]:
        if self._engine is None or self._prompts is None:
            raise InvalidParameterError("this AsyncLLM is not started; use it in 'async with', or call start()")
        return self._engine, self._prompts


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[], object]]:
    """Draw a progress bar on standard error while the block runs; yields what advances it by one."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console  # noqa: PLC0415  (start-up time)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
