"""What programs in the server run on: the engine's own client, asked from the thread in which programs are driven.

::

    driver's loop (lang)                       server's loop
    submit ── run_coroutine_threadsafe ──────► engine.submit
    queue  ◄── call_soon_threadsafe ────────── deltas
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from trivium.base.errors import TemplateError, UnsupportedFeatureError
from trivium.lang.transcript import Codec, TokenCodec
from trivium.server.errors import ProgramLimitError

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.server.service import Service


class Spent:
    """Tokens of one run: those that its requests may write are taken at once, those that they did not given back."""

    def __init__(self, most_tokens: int) -> None:
        self._left = self._most = most_tokens
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0

    def take(self, wanted: int) -> None:
        """Take tokens for a request.

        Raises:
            ProgramLimitError: So many are not left.
        """
        if wanted > self._left:
            raise ProgramLimitError(
                f"the program asks for {wanted} tokens more, and has {self._left} left of {self._most} "
                "(max_program_tokens of this server); ask for fewer with max_tokens, or end loops sooner",
                param="program",
            )
        self._left -= wanted

    def give_back(self, count: int) -> None:
        """Give back what a request did not write."""
        self._left += count


class EngineBackend:
    """Answers with the server's engine; made in the server's event loop, used in the driver's."""

    def __init__(self, service: Service, run_id: str, spent: Spent, asked: Mapping[str, Any]) -> None:
        """Ask for one run.

        Args:
            service: Engine, tokenizer and template.
            run_id: Begins the ids of its requests.
            spent: Its tokens.
            asked: Further arguments of the engine's `submit`: tenant, salt, priority.
        """
        self._service = service
        self._run_id = run_id
        self._spent = spent
        self._asked = asked
        self._numbers = count()
        self._loop = asyncio.get_running_loop()
        self.codec: Codec = TokenCodec(cast("Any", service.tokenizer))

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages through the model's chat template.

        Raises:
            TemplateError: The template refuses them, or there is none.
        """
        template = self._service.chat_template
        if template is None:
            raise TemplateError("this model has no chat template, so programs on it have no roles")
        return template.render(messages, add_generation_prompt=add_generation_prompt)

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt and yield its news; closing the generator aborts the request.

        Raises:
            ProgramLimitError: The run has not so many tokens left.
            TriviumError: The request is refused, or failed.
        """
        params.validate()
        wanted = (params.max_tokens or 0) * params.num_draws
        self._spent.take(wanted)
        here, news = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def tell(each: Any) -> None:
            if not here.is_closed():
                here.call_soon_threadsafe(news.put_nowait, each)

        work = asyncio.run_coroutine_threadsafe(self._ask(prompt_ids, params, program, tell), self._loop)
        self._spent.prompt_tokens += len(prompt_ids)
        num_open, num_written, is_first = params.num_draws, 0, True
        try:
            while num_open:
                each = await news.get()
                if isinstance(each, BaseException):
                    raise each
                if each.token_ids and is_first:
                    is_first = False
                    self._spent.cached_tokens += each.cached_len
                num_written += len(each.token_ids)
                num_open -= each.finish_reason is not None
                yield each
        finally:
            self._spent.completion_tokens += num_written
            self._spent.give_back(max(0, wanted - num_written))
            work.cancel()

    async def _ask(self, prompt_ids: list[int], params: SamplingParams, program: Any, tell: Any) -> None:
        """In the server's loop: run a request and tell its news, last an error if there is one."""
        stream = self._service.engine.submit(
            prompt_ids, params, request_id=f"{self._run_id}-{next(self._numbers)}", program=program, **self._asked
        )
        try:
            async with aclosing(cast("AsyncGenerator[Delta]", stream)) as deltas:
                async for delta in deltas:
                    tell(delta)
        except Exception as error:
            tell(error)

    def end_program(self, program_id: str) -> None:
        """Let the run's cached paths go like others."""
        tenant = str(self._asked.get("tenant", ""))
        self._loop.call_soon_threadsafe(self._service.engine.end_program, program_id, tenant)

    def flush_cache(self) -> None:
        """Refuse: the cache is everybody's.

        Raises:
            UnsupportedFeatureError: Always.
        """
        raise UnsupportedFeatureError("programs in the server do not flush its cache")

    @property
    def info(self) -> Mapping[str, Any]:
        """What was loaded, and how."""
        return self._service.engine.status().info
