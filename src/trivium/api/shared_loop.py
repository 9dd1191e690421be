"""One engine loop behind many callers: threads, and iterators that are open at the same time.

Nobody owns the loop. Whoever waits for news takes a turn, runs one step, and puts every delta of it into the inbox that
its request belongs to, whether or not that is its own::

    thread A   read(a) ── turn: step ─► deltas of a and of b ── a has news, return
    thread B   read(b) ──────── waits ─────────────────────────── turn: b has news already, return

So nothing runs while nobody waits, and nothing is lost when two read in any order.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from trivium.api.lora import name_and_path
from trivium.api.turns import Turns
from trivium.base.errors import CapacityError, InvalidParameterError, ensure

if TYPE_CHECKING:
    from trivium.api.lora import Lora
    from trivium.api.prompts import ReadPrompt
    from trivium.config.sampling import SamplingParams
    from trivium.engine.adapters import AdapterRecord, EngineAdapters
    from trivium.engine.loop import EngineLoop
    from trivium.engine.messages import Delta


@dataclass(slots=True, eq=False)
class Inbox:
    """The news of one caller's requests, until the caller reads them."""

    num_open: dict[str, int] = field(default_factory=dict)
    """Request id to its choices that have not ended."""
    news: list[Delta] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether there is, or will be, something to read."""
        return bool(self.news or self.num_open)


class SharedLoop:
    """Submits to, steps and aborts in a loop that others use too.

    Invariants:
        The loop is touched in a turn only, but for what never changes (`info`, `refuse_early`).
        Every open request of the loop has an inbox, until its caller leaves.
    """

    def __init__(self, loop: EngineLoop, *, seed: int | None) -> None:
        """Take ownership of `loop`; `seed` is that of the seeds of requests without one."""
        self._loop: EngineLoop | None = loop
        self._turns = Turns()
        self._inboxes: dict[str, Inbox] = {}
        self._left: deque[Inbox] = deque()
        """Inboxes whose callers are gone and whose requests have still to be aborted."""
        self._over: deque[str] = deque()
        """Programs that have ended, of which the loop has still to be told."""
        self._first_use = threading.Lock()
        """Held while an adapter is loaded because somebody asks for it."""
        from trivium.engine.adapter_names import AdapterNames  # noqa: PLC0415  (start-up time)

        self._names = AdapterNames()
        self._names.begin(loop.adapters.records if loop.adapters is not None else ())
        self._ids = count()
        self._seeds = random.Random(seed)  # noqa: S311  (sampling seeds, not secrets)

    @property
    def info(self) -> dict[str, object]:
        """What was loaded, and how."""
        return self._open_loop().info

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> AdapterRecord:
        """Load an adapter beside what runs.

        Raises:
            InvalidParameterError: The name is none, or taken.
            AdapterError: It cannot be read, or does not fit the model.
            CapacityError: There is not enough memory.
        """
        adapters = self._adapters()
        with self._names.loading(name, (), in_place=in_place) as generation:
            record = adapters.load(name, path, generation)
            replaced = self._names.add(record)
        if replaced is not None:
            with self._turn():
                adapters.unload(replaced.generation)
        return record

    def unload_adapter(self, name: str) -> None:
        """Let a name mean nothing; requests that began with the adapter go on.

        Raises:
            ModelNotFoundError: No adapter has it.
        """
        record = self._names.remove(name)
        with self._turn():
            self._adapters().unload(record.generation)

    def adapters(self) -> list[AdapterRecord]:
        """Return those that requests may name, oldest first."""
        return list(self._names)

    def adapter_of(self, given: Lora) -> AdapterRecord | None:
        """Return what a prompt asks for, loading it when it is used first.

        Raises:
            ModelNotFoundError: No adapter has the name, and no folder is given.
            InvalidParameterError: The name means the adapter of another folder.
            AdapterError: It cannot be read, or does not fit the model.
        """
        if given is None:
            return None
        name, path = name_and_path(given)
        with self._first_use:
            return self._names.known(name, path) or self.load_adapter(name, path)

    def _adapters(self) -> EngineAdapters:
        from trivium.engine.operations import adapters_of  # noqa: PLC0415  (start-up time)

        return adapters_of(self._open_loop().adapters)

    def prepare(self, prompts: Sequence[ReadPrompt], params: Iterable[SamplingParams]) -> list[SamplingParams]:
        """Check requests, then fill in their seeds, all at once: they do not depend on what other threads submit.

        Raises:
            RequestError: One would be refused whatever the queue holds; no seed was drawn.
        """
        loop, params = self._open_loop(), list(params)
        for prompt, own in zip(prompts, params, strict=True):
            loop.refuse_early(prompt.ids, own, prompt.priority)
        return self.seeded(params)

    def seeded(self, params: Sequence[SamplingParams]) -> list[SamplingParams]:
        """Return parameters with the seeds filled in that were left open."""
        with self._turn():
            return [own if own.seed is not None else replace(own, seed=self._seeds.getrandbits(63)) for own in params]

    def try_submit(self, inbox: Inbox, prompt: ReadPrompt, params: SamplingParams) -> str | None:
        """Queue a request whose news come to `inbox`; returns its id, or `None` while the queue is full.

        Raises:
            RequestError: The request is refused.
            CapacityError: The queue cannot take it although nothing is open, so that waiting would not help.
        """
        from trivium.engine.messages import Submit  # noqa: PLC0415  (start-up time)

        with self._turn() as loop:
            request_id = f"llm-{next(self._ids)}"
            message = Submit(
                request_id=request_id,
                prompt_ids=prompt.ids,
                params=params,
                cache_salt=prompt.cache_salt,
                priority=prompt.priority,
                program=prompt.program,
                adapter=None if prompt.adapter is None else prompt.adapter.name,
                adapter_generation=0 if prompt.adapter is None else prompt.adapter.generation,
            )
            try:
                loop.submit(message)
            except CapacityError:
                if not loop.open_requests:
                    raise
                return None
            self._inboxes[request_id] = inbox
            inbox.num_open[request_id] = params.num_draws
            return request_id

    def step(self) -> None:
        """Run one step and hand out its news."""
        with self._turn() as loop:
            self._step(loop)

    def read(self, inbox: Inbox) -> list[Delta]:
        """Return the news of an inbox, running steps until there are any; nothing when nothing of it is open."""
        while True:
            with self._turn() as loop:
                if not inbox.news and inbox.num_open:
                    self._step(loop)
                if inbox.news or not inbox.num_open:
                    news, inbox.news = inbox.news, []
                    return news

    def abort(self, inbox: Inbox, request_ids: Sequence[str]) -> None:
        """End some requests of an inbox; nothing more is read of them."""
        with self._turn() as loop:
            loop.abort([each for each in request_ids if each in inbox.num_open])
            for request_id in request_ids:
                inbox.num_open.pop(request_id, None)
                self._inboxes.pop(request_id, None)
            inbox.news = [news for news in inbox.news if news.request_id not in request_ids]

    def compile_ahead(self, params: SamplingParams) -> None:
        """Begin to compile the constraint that a request will have; never waits."""
        compiling = self._open_loop().compiling
        if compiling is not None:
            compiling.expect(params)

    def call(self, name: str, arguments: Mapping[str, object] = MappingProxyType({})) -> dict[str, object]:
        """Do one of the named calls of `EngineLoop.call`, which are not requests."""
        with self._turn() as loop:
            answer = loop.call(name, arguments)
        return answer.result() if isinstance(answer, Future) else answer

    def leave(self, inbox: Inbox) -> None:
        """Abort what is open of an inbox: at once, or as soon as the turn of another thread ends.

        Never waits: the finalizer of a forgotten iterator may call it, in any thread and in the middle of a step.
        """
        if inbox.num_open:
            self._left.append(inbox)
            self._sweep()

    def end_program(self, program_id: str) -> None:
        """Let the cached paths of a program go like others; never waits, as `leave`."""
        self._over.append(program_id)
        self._sweep()

    def close(self) -> None:
        """Give back the loop's memory and threads; who waits for news is told that it is closed."""
        with self._turns:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.close()

    @contextmanager
    def _turn(self) -> Iterator[EngineLoop]:
        try:
            with self._turns:
                self._abort_left()
                yield self._open_loop()
        finally:
            self._sweep()

    def _open_loop(self) -> EngineLoop:
        if self._loop is None:
            raise InvalidParameterError("this LLM is closed")
        return self._loop

    def _step(self, loop: EngineLoop) -> None:
        ensure(loop.has_work, "the engine has nothing to do while a request is open")
        for news in (*loop.step(), *self._refused(loop)):
            inbox = self._inboxes.get(news.request_id)
            if inbox is None:
                continue
            inbox.news.append(news)
            if news.finish_reason is not None:
                inbox.num_open[news.request_id] -= 1
                if not inbox.num_open[news.request_id]:
                    del inbox.num_open[news.request_id], self._inboxes[news.request_id]
        if not loop.has_work:
            loop.idle()

    def _refused(self, loop: EngineLoop) -> Iterator[Delta]:
        """Tell requests that were refused after they had been taken in: each of their choices ends with the error."""
        from trivium.engine.output import ended_by  # noqa: PLC0415  (start-up time)

        for request_id, error in loop.take_refusals():
            inbox = self._inboxes.get(request_id)
            for choice in range(0 if inbox is None else inbox.num_open[request_id]):
                yield ended_by(error, request_id, choice)

    def _sweep(self) -> None:
        """Abort what was left meanwhile, unless somebody has the turn, who will then do it on leaving."""
        while (self._left or self._over) and self._turns.try_enter():
            try:
                self._abort_left()
            finally:
                self._turns.leave()

    def _abort_left(self) -> None:
        while self._left:
            inbox = self._left.popleft()
            for request_id in inbox.num_open:
                self._inboxes.pop(request_id, None)
            if self._loop is not None:
                self._loop.abort(inbox.num_open)
            inbox.num_open.clear()
        while self._over:
            program_id = self._over.popleft()
            if self._loop is not None:
                self._loop.call("end_program", {"program_id": program_id})
