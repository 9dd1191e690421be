"""`LLM`: the engine loop in the caller's threads, with names and defaults that vLLM's users know."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from trivium.api.lora import Lora, Loras, absolute, per_prompt
from trivium.api.outputs import Answers, RequestOutput
from trivium.api.progress import progress_bar
from trivium.api.prompts import (
    ChatForm,
    Message,
    Params,
    Priorities,
    Prompt,
    PromptReader,
    ReadPrompt,
    with_output,
)
from trivium.api.shared_loop import Inbox, SharedLoop
from trivium.config.resolve import options_from

if TYPE_CHECKING:
    from trivium.assembly import Frontend
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.tokens.tokenizer import Tokenizer


class LLM:
    """A model in this process.

    Options are those of `trivium serve`, by the same names: `LLM("smollm2", max_num_seqs=16, seed=0)`.

    Threads: every method may be called from any thread, and iterators of `stream` may be open beside each other and
    beside `generate`. Whoever waits runs the engine for all, so that requests of all threads run together. Greedy and
    seeded answers are those of a single thread; other seeds are drawn per call, in the order of the calls.
    """

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        """Find, fetch and load the model.

        Raises:
            ConfigError: An option is unknown or has a bad value.
            ModelError: The model cannot be found, fetched or understood.
        """
        from trivium.assembly import build_engine, load_frontend, open_model  # noqa: PLC0415  (start-up time)

        self.options = options_from({"model": model, **options})
        opened = open_model(self.options)
        frontend = load_frontend(self.options, model=opened)
        self._reader = PromptReader(frontend)
        loop = build_engine(self.options, model=opened, tokenizer=frontend.tokenizer)
        self._shared = SharedLoop(loop, seed=self.options.schedule.seed)

    @property
    def frontend(self) -> Frontend:
        """Name, configuration, tokenizer and chat template of the model."""
        return self._reader.frontend

    @property
    def info(self) -> dict[str, object]:
        """What was loaded, and how."""
        return self._shared.info

    @property
    def shared_loop(self) -> SharedLoop:
        """The engine that all callers share, for what is built upon it."""
        return self._shared

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._reader.tokenizer

    def default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when it is given none: the model's own recommendation."""
        return self._reader.params(None)

    get_default_sampling_params = default_sampling_params
    """The name that vLLM's users know."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Priorities = 0,
        lora_request: Loras = None,
    ) -> list[RequestOutput]:
        """Answer prompts; the answers are in the order of the prompts.

        Args:
            prompts: One prompt or many, each a text, a list of token ids, `{"prompt": text}` or
                `{"prompt_token_ids": ids}`.
            sampling_params: For all prompts, or one per prompt; `None` takes the model's own recommendation.
            use_tqdm: Draw a progress bar, if standard error is a terminal.
            priority: Smaller starts first, for all prompts or one per prompt; other than 0 only with
                `order="priority"`.
            lora_request: The adapter that answers, for all prompts or one per prompt: the name of a loaded one, or a
                `LoRARequest`, which is loaded when it is used first; `None` is the base alone.

        Raises:
            RequestError: A prompt, parameter or adapter is refused; no prompt was run.
            CapacityError: A request needs more room than an empty queue has (`max_queue`).
        """
        read = self._with_loras(self._reader.with_priorities(self._reader.many(prompts), priority), lora_request)
        return self._run(read, sampling_params, has_bar=use_tqdm)

    def chat(  # noqa: PLR0913  (names that vLLM's users know)
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Priorities = 0,
        lora_request: Loras = None,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        documents: Sequence[Mapping[str, str]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_reasoning_tokens: int | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template.

        Args:
            messages: One conversation, or a list of them; each is a list of messages with `role` and `content`.
            sampling_params: As for `generate`.
            use_tqdm: As for `generate`.
            priority: As for `generate`, one per conversation.
            lora_request: As for `generate`, one per conversation.
            chat_template: Jinja text, or the path of a file, instead of the model's own template.
            add_generation_prompt: End with the beginning of an answer; `None` does so unless the final message is
                continued.
            continue_final_message: Go on inside the final message.
            tools: Functions that the model may call, in OpenAI's shape; see `CompletionOutput.tool_calls`.
            tool_choice: `auto`, `none`, `required`, or OpenAI's shapes that name tools.
            parallel_tool_calls: Whether one answer may call several tools.
            documents: Texts for the template to show to the model, where it does.
            chat_template_kwargs: Further variables of the template.
            max_reasoning_tokens: Tokens of reasoning after which its end is written.

        Raises:
            RequestError: A message, field or parameter is refused, or there is no template; nothing was run.
            ConfigError: `chat_template` is neither a template nor a file.
            CapacityError: A request needs more room than an empty queue has (`max_queue`).
        """
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
        prompts = self._reader.with_priorities(self._reader.chats(messages, form), priority)
        read = self._with_loras(prompts, lora_request)
        return self._run(read, sampling_params, has_bar=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        lora_request: Lora = None,
    ) -> Generator[Delta]:
        """Answer one prompt and yield its news as it comes; leaving early, or `close`, aborts the request.

        The request is submitted when the first news is asked for, and runs only while somebody waits for news. A
        `priority` other than 0 wants `order="priority"`.

        Raises:
            RequestError: The prompt or a parameter is refused.
            CapacityError: The request needs more room than an empty queue has (`max_queue`).
        """
        prompts = self._reader.with_priorities([self._reader.one(prompt)], priority)
        [read] = self._with_loras(prompts, lora_request)
        [params] = self._shared.prepare([read], [self._reader.params(sampling_params)])
        return self._stream(read, params)

    def load_lora(self, name: str, path: str | Path, *, load_inplace: bool = False) -> None:
        """Load a LoRA adapter, also while answers run in other threads.

        Args:
            name: What `lora_request` calls it.
            path: Folder that peft wrote.
            load_inplace: Whether it may replace an adapter of the same name; answers under way keep the old one.

        Raises:
            RequestError: The name is taken, or the adapter cannot be read or does not fit the model.
            CapacityError: There is not enough memory.
        """
        self._shared.load_adapter(name, absolute(path), in_place=load_inplace)

    def unload_lora(self, name: str) -> None:
        """Let a name mean nothing; answers under way keep the adapter.

        Raises:
            ModelNotFoundError: No adapter has the name.
        """
        self._shared.unload_adapter(name)

    def list_loras(self) -> list[str]:
        """Return the names of the loaded adapters, oldest first."""
        return [record.name for record in self._shared.adapters()]

    def close(self) -> None:
        """Give back memory and threads; the object is not used afterwards."""
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _with_loras(self, prompts: Sequence[ReadPrompt], given: Loras) -> list[ReadPrompt]:
        pairs = zip(prompts, per_prompt(given, len(prompts)), strict=True)
        return [replace(prompt, adapter=self._shared.adapter_of(lora)) for prompt, lora in pairs]

    def _stream(self, prompt: ReadPrompt, params: SamplingParams) -> Generator[Delta]:
        inbox = Inbox()
        try:
            while self._shared.try_submit(inbox, prompt, params) is None:
                self._shared.step()
            while inbox.is_open:
                yield from self._shared.read(inbox)
        finally:
            self._shared.leave(inbox)

    def _run(self, prompts: Sequence[ReadPrompt], given: Params, *, has_bar: bool) -> list[RequestOutput]:
        """Feed prompts as the queue takes them, until all have ended."""
        given_params = self._reader.params_per_prompt(given, len(prompts))
        params = [with_output(own, prompt) for own, prompt in zip(given_params, prompts, strict=True)]
        requests = list(zip(prompts, self._shared.prepare(prompts, params), strict=True))
        inbox = Inbox()
        answers: dict[str, Answers] = {}
        try:
            with progress_bar(len(requests), is_wanted=has_bar) as advance:
                while len(answers) < len(requests) or inbox.is_open:
                    self._feed(inbox, requests, answers)
                    if not inbox.is_open:  # the queue is full of what others submitted
                        self._shared.step()
                    for news in self._shared.read(inbox):
                        own = answers[news.request_id]
                        own.add(news)
                        if own.output.finished:
                            advance()
        finally:
            self._shared.leave(inbox)
        return [own.result() for own in answers.values()]

    def _feed(
        self, inbox: Inbox, requests: Sequence[tuple[ReadPrompt, SamplingParams]], answers: dict[str, Answers]
    ) -> None:
        """Submit further prompts until the queue is full; `answers` holds those submitted, in order."""
        while len(answers) < len(requests):
            prompt, params = requests[len(answers)]
            request_id = self._shared.try_submit(inbox, prompt, params)
            if request_id is None:
                return
            answers[request_id] = Answers(
                request_id, prompt.text, prompt.ids, params, num_earlier_calls=prompt.num_earlier_calls
            )
