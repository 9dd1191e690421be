"""What the HTTP floor needs from below, as protocols: an engine, a tokenizer, a chat template.

The server is written and tested against these; `engine.client.EngineClient`, `tokens` and the fakes of the tests all
fit. Nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from trivium.config.program_share import ProgramShare
from trivium.config.sampling import SamplingParams
from trivium.engine.adapters import AdapterRecord
from trivium.engine.messages import AnswerReport, CacheNews, Delta


class StatusPort(Protocol):
    """A reading of the engine's condition."""

    @property
    def is_ready(self) -> bool:
        """Whether weights are loaded and the loop takes requests."""
        ...

    @property
    def is_restarting(self) -> bool:
        """Whether the engine is started again: requests are taken, and wait for it."""
        ...

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the loop last gave a sign of life."""
        ...

    @property
    def epoch(self) -> int:
        """Which engine this is: 1 for the first, 0 before there is one."""
        ...

    @property
    def info(self) -> Mapping[str, object]:
        """What the engine said of itself when it became ready; empty before."""
        ...

    @property
    def stats(self) -> Mapping[str, object]:
        """Counters of the last heartbeat; `engine_metrics` knows those that are shown."""
        ...

    @property
    def error(self) -> str | None:
        """Why the engine is not ready, when it failed rather than still loads."""
        ...


class AdaptersPort(Protocol):
    """The adapters of an engine, by name; `engine.served_adapters.ServedAdapters` fits."""

    def __iter__(self) -> Iterator[AdapterRecord]:
        """Those that requests may name, oldest first."""
        ...

    def __contains__(self, name: object) -> bool:
        """Whether an adapter has that name."""
        ...

    def find(self, name: str | None) -> AdapterRecord | None:
        """Return what a name means; nothing for none.

        Raises:
            ModelNotFoundError: No adapter has it.
        """
        ...

    async def load(self, name: str, path: str, *, taken: Collection[str] = (), in_place: bool = False) -> AdapterRecord:
        """Load an adapter while requests run.

        Raises:
            RequestError: The name is taken, or the adapter cannot be read or does not fit.
            CapacityError: There is not enough memory.
            EngineDeadError: There is no engine.
        """
        ...

    async def unload(self, name: str) -> AdapterRecord:
        """Let a name mean nothing; requests that began with the adapter go on.

        Raises:
            ModelNotFoundError: No adapter has it.
        """
        ...


class EnginePort(Protocol):
    """The engine as its client sees it; all methods belong to one event loop."""

    @property
    def adapters(self) -> AdaptersPort:
        """What requests may name beside the model."""
        ...

    def status(self) -> StatusPort:
        """Read the condition; never waits."""
        ...

    def submit(  # noqa: PLR0913  (what a request is made of, by name)
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        program: ProgramShare | None = None,
        deadline_s: float | None = None,
        adapter: str | None = None,
        on_news: Callable[[Delta], bool] | None = None,
    ) -> AsyncIterator[Delta]:
        """Run a request and yield the news of its choices until all have a `finish_reason`.

        The first delta, empty, says that the request was accepted. Closing the iteration early aborts the request.
        `adapter` names one of `adapters`. `on_news` may be offered what comes while the reader waits, unless it ends a
        choice; what it takes is not yielded.

        Raises:
            RequestError: The engine refused the request (at the first `anext`), or no adapter has that name (at once).
            CapacityError: The queue is full (at the first `anext`).
            EngineDeadError: The engine died; at any `anext`.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        ...

    def end_program(self, program_id: str, tenant: str = "") -> None:
        """Let a program's cached paths go like others; never waits."""
        ...

    async def call(self, name: str, arguments: Mapping[str, object] = MappingProxyType({})) -> dict[str, Any]:
        """Ask for something that is not a request; see `EngineLoop.call`."""
        ...

    def watch_ends(self, on_ended: Callable[[AnswerReport], None]) -> None:
        """Tell `on_ended` of every answer that ends, aborted ones included, before its last news are yielded."""
        ...

    def watch_cache(self, on_news: Callable[[CacheNews], None]) -> None:
        """Tell `on_news` what happens to the prefix cache, where the engine was told to say so."""
        ...

    def watch_starts(self, on_start: Callable[[], None]) -> None:
        """Call `on_start` whenever an engine is ready, after the requests of the one before were sent to it."""
        ...


class TokenizerPort(Protocol):
    """Text to ids and back."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Turn text into ids."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Turn ids into text; what is not UTF-8 becomes U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; none for an id that the tokenizer does not know."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what `tokens.portable` makes it of again, as JSON-like values."""
        ...


class ChatTemplatePort(Protocol):
    """Messages to prompt text."""

    @property
    def takes_text_arguments(self) -> bool:
        """Whether it wants the arguments of calls as texts, not as objects."""
        ...

    def uses(self, variable: str) -> bool:
        """Whether it looks at a variable."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what `tokens.portable` makes it of again, as JSON-like values."""
        ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render a conversation.

        Raises:
            TemplateError: The template refused the messages.
        """
        ...
