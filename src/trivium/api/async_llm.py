"""`AsyncLLM`: the engine loop in a thread of its own, for asyncio programs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trivium.api.lora import Lora, absolute, name_and_path, per_prompt
from trivium.api.prompts import ChatForm, Message, Prompt, PromptReader, ReadPrompt, with_output
from trivium.base.errors import InvalidParameterError
from trivium.config.resolve import options_from

if TYPE_CHECKING:
    from trivium.assembly import Frontend
    from trivium.config.sampling import SamplingParams
    from trivium.engine.local import LocalEngine
    from trivium.engine.messages import Delta


_LOOK_AGAIN_S = 0.01


class AsyncLLM:
    """A model in a thread of this process; used from any event loops, also several at a time.

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
        self._reader: PromptReader | None = None

    @property
    def engine(self) -> LocalEngine:
        """The engine that all callers share, for what is built upon it.

        Raises:
            InvalidParameterError: The model is not loaded.
        """
        return self._open()[0]

    @property
    def frontend(self) -> Frontend:
        """Name, configuration, tokenizer and chat template of the model.

        Raises:
            InvalidParameterError: It is not loaded.
        """
        return self._open()[1].frontend

    async def start(self) -> None:
        """Load the model and start its thread.

        Raises:
            ModelError: The model cannot be found, fetched or understood.
            InvalidParameterError: It runs already.
        """
        import asyncio  # noqa: PLC0415  (start-up time)

        from trivium.assembly import build_engine, load_frontend, open_model  # noqa: PLC0415
        from trivium.engine.local import LocalEngine  # noqa: PLC0415

        if self._engine is not None:
            raise InvalidParameterError("this AsyncLLM runs already")
        opened = await asyncio.to_thread(open_model, self.options)
        frontend = await asyncio.to_thread(load_frontend, self.options, model=opened)
        loop = await asyncio.to_thread(build_engine, self.options, model=opened, tokenizer=frontend.tokenizer)
        self._reader = PromptReader(frontend)
        self._engine = LocalEngine(loop, seed=self.options.schedule.seed)
        await self._engine.start()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        lora_request: Lora = None,
    ) -> AsyncIterator[Delta]:
        """Answer one prompt and yield its news; leaving early aborts the request.

        Args:
            prompt: A text, a list of token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`.
            sampling_params: `None` takes the model's own recommendation.
            request_id: For `abort`; one is made when it is `None`.
            priority: Smaller starts first; other than 0 only with `order="priority"`.
            lora_request: The adapter that answers: the name of a loaded one, or a `LoRARequest`, which is loaded when
                it is used first; `None` is the base alone.

        Raises:
            InvalidParameterError: The model is not loaded (use `async with`, or `start`).
            RequestError: The prompt or a parameter is refused.
        """
        engine, reader = self._open()
        [read] = reader.with_priorities([reader.one(prompt)], priority)
        return _submit(engine, read, reader.params(sampling_params), request_id, lora_request)

    def chat(  # noqa: PLR0913  (names that vLLM's users know)
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        lora_request: Lora = None,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        documents: Sequence[Mapping[str, str]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_reasoning_tokens: int | None = None,
    ) -> AsyncIterator[Delta]:
        """Answer one conversation and yield its news; arguments are those of `LLM.chat`.

        Reasoning and tool calls come as `parts` of the news.

        Raises:
            InvalidParameterError: The model is not loaded (use `async with`, or `start`).
            RequestError: A message, field or parameter is refused, or there is no template.
            ConfigError: `chat_template` is neither a template nor a file.
        """
        engine, reader = self._open()
        form = ChatForm(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            documents=documents,
            chat_template_kwargs=chat_template_kwargs,
            max_reasoning_tokens=max_reasoning_tokens,
        )
        [read] = reader.with_priorities([reader.chat(messages, form)], priority)
        params = with_output(reader.params(sampling_params), read)
        return _submit(engine, read, params, request_id, lora_request)

    async def load_lora(self, name: str, path: str | Path, *, load_inplace: bool = False) -> None:
        """Load a LoRA adapter while answers run; see `LLM.load_lora`.

        Raises:
            RequestError: The name is taken, or the adapter cannot be read or does not fit the model.
            CapacityError: There is not enough memory.
        """
        engine, _ = self._open()
        await engine.adapters.load(name, absolute(path), in_place=load_inplace)

    async def unload_lora(self, name: str) -> None:
        """Let a name mean nothing; answers under way keep the adapter.

        Raises:
            ModelNotFoundError: No adapter has the name.
        """
        engine, _ = self._open()
        await engine.adapters.unload(name)

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

    def _open(self) -> tuple[LocalEngine, PromptReader]:
        if self._engine is None or self._reader is None:
            raise InvalidParameterError("this AsyncLLM is not started; use it in 'async with', or call start()")
        return self._engine, self._reader


def _submit(
    engine: LocalEngine, prompt: ReadPrompt, params: SamplingParams, request_id: str | None, lora: Lora
) -> AsyncIterator[Delta]:
    [wanted] = per_prompt(lora, 1)
    name, path = (None, "") if wanted is None else name_and_path(wanted)
    stream = partial(
        engine.submit,
        prompt.ids,
        params,
        request_id=request_id,
        cache_salt=prompt.cache_salt,
        priority=prompt.priority,
        adapter=name,
    )
    if name is not None and engine.adapters.names.known(name, path) is None:
        return _load_first(engine, name, path, stream)
    return stream()


async def _load_first(
    engine: LocalEngine, name: str, path: str, stream: Callable[[], AsyncGenerator[Delta]]
) -> AsyncGenerator[Delta]:
    import asyncio  # noqa: PLC0415  (start-up time)

    names = engine.adapters.names
    while names.known(name, path) is None:
        if names.is_loading(name):  # for somebody who asked before
            await asyncio.sleep(_LOOK_AGAIN_S)
        else:
            await engine.adapters.load(name, path)
    async with contextlib.aclosing(stream()) as news_of_it:
        async for news in news_of_it:
            yield news
