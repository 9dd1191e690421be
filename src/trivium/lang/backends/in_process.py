"""The backends of models in this process: programs of all threads run together in one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

from trivium.api.prompts import ReadPrompt
from trivium.base.errors import TriviumError
from trivium.config.sampling import SamplingParams
from trivium.lang.backends.model_words import ModelWords
from trivium.lang.backends.pump import Pump, Ticket
from trivium.lang.driver import driver

if TYPE_CHECKING:
    from trivium.api import LLM, AsyncLLM
    from trivium.assembly import Frontend
    from trivium.config.program_share import ProgramShare
    from trivium.config.structured import StructuredOutputs
    from trivium.engine.messages import Delta
    from trivium.tokens.chat import ChatTemplate
    from trivium.tokens.tokenizer import Tokenizer


class InProcess(ModelWords):
    """Answers with an `LLM`; several may share it, and with its own `generate`."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(*_words_of(llm.frontend))
        self._shared = llm.shared_loop
        self._pump = Pump(self._shared)

    async def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt and yield its news; closing the generator aborts the request.

        Raises:
            RequestError: The request is refused.
            CapacityError: It can never be taken.
        """
        news: asyncio.Queue[Delta | TriviumError] = asyncio.Queue()
        prompt = ReadPrompt(None, prompt_ids, program=program)
        ticket = Ticket(prompt, params, asyncio.get_running_loop(), news.put_nowait)
        self._pump.submit(ticket)
        num_open = params.num_draws
        try:
            while num_open:
                each = await news.get()
                if isinstance(each, TriviumError):
                    num_open = 0
                    raise each
                num_open -= each.finish_reason is not None
                yield each
        finally:
            if num_open:
                self._pump.cancel(ticket)

    def wait(self) -> None:
        """Wait a little for the step under way, and what is still open, to end."""
        self._pump.wait()

    def end_program(self, program_id: str) -> None:
        """Let the run's cached paths go like others."""
        self._shared.end_program(program_id)

    def compile_ahead(self, constraint: StructuredOutputs) -> None:
        """Have a constraint compiled before a request needs it; what is wrong with it, its request is told."""
        self._shared.compile_ahead(SamplingParams(structured_outputs=constraint))

    def pin(self, pin_id: str, prompt_ids: list[int]) -> bool:
        """Keep the whole pages of a cached prompt until it is unpinned; returns whether there was room for them."""
        given = {"pin_id": pin_id, "prompt_ids": prompt_ids, "cache_salt": ""}
        return self._shared.call("pin", given).get("refused") is None

    def unpin(self, pin_id: str) -> None:
        """Let a pinned prompt go."""
        self._shared.call("unpin", {"pin_id": pin_id})

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        self._shared.call("flush")

    @property
    def info(self) -> Mapping[str, Any]:
        """What was loaded, and how."""
        return self._shared.info


class InThread(ModelWords):
    """Answers with an `AsyncLLM`, whose engine runs in a thread of its own, beside its own `generate`."""

    def __init__(self, llm: AsyncLLM) -> None:
        """Share a model.

        Raises:
            InvalidParameterError: It is not loaded.
        """
        super().__init__(*_words_of(llm.frontend))
        self._llm = llm

    def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt and yield its news; closing the generator aborts the request.

        Raises:
            RequestError: The request is refused.
            CapacityError: The queue is full.
            EngineDeadError: The model was closed.
        """
        return self._llm.engine.submit(prompt_ids, params, program=program)

    def end_program(self, program_id: str) -> None:
        """Let the run's cached paths go like others."""
        self._llm.engine.end_program(program_id)

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        driver.refuse_to_wait()
        driver.submit(self._llm.engine.call("flush")).result()

    @property
    def info(self) -> Mapping[str, Any]:
        """What was loaded, and how."""
        return self._llm.engine.status().info


def _words_of(frontend: Frontend) -> tuple[str, Tokenizer, ChatTemplate | None]:
    return frontend.name, frontend.tokenizer, frontend.chat_template
