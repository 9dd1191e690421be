"""A client and one engine after another, without processes: everything of `EngineClient` but its sockets and watch.

An engine that is lost is a loop that nobody listens to any more: what it was told and had not taken, and what it was
about to say, is gone, and so is what its tiers had in memory. What remains is its journal, and its disk. Time is a
clock that stands still, and the worker of the tiers works when it is told to, so a story that fails, fails again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.scripted_loop import EngineKilledError, MortalExecutor, Told
from trivium.base.clock import FakeClock
from trivium.base.errors import CapacityError, RequestError, TriviumError
from trivium.engine.admit import Answer
from trivium.engine.journal import Journal, LastWork, read_journal
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Abort, Delta, Submit
from trivium.engine.process import refusal
from trivium.engine.replay import Replay
from trivium.engine.streams import StreamTable
from trivium.engine.suspects import Death
from trivium.tiers.disk import DiskTier
from trivium.tiers.host import HostTier
from trivium.tiers.lower import LowerTiers
from trivium.tiers.rates import Rate, Rates
from trivium.tiers.tier import Tier
from trivium.tiers.worker import TierWorker

MAX_HELD = 12


class FixedRate(Rate):
    """A rate that no measurement changes, so that nothing depends on how fast the machine is."""

    def note(self, amount: float, seconds: float) -> None:
        """Learn nothing."""


class SteppedWorker(TierWorker):
    """The worker without its thread."""

    def _run(self) -> None:
        """Let the thread end at once."""

    def work(self, count: int) -> None:
        """Do so many things, if there are."""
        for _ in range(count):
            if self._has_work:
                self._work_once()

    def settle(self) -> None:
        """Do everything."""
        while self._has_work:
            self._work_once()

    def wait(self, timeout_s: float) -> None:
        """Get on a little."""
        self.work(1)

    def wait_for_room(self, until_s: float) -> bool:
        """Make room."""
        self.settle()
        return True

    def close(self) -> None:
        """Write what is queued, then close the tiers."""
        super().close()
        while self._work_once():
            pass
        self._tier.close()

    def lose(self) -> None:
        """Be gone with everything that is only in memory."""
        self._queue.clear()
        self._queued_bytes = 0
        tier = self._tier
        while isinstance(tier, HostTier):
            tier._pages.clear()
            tier = tier._below  # type: ignore[assignment]
        self.close()

    def _call(self, call: Callable[[], None]) -> None:
        call()


def stepped_tiers(
    executor: MortalExecutor,
    holder: str,
    folder: Path,
    *,
    disk_pages: int,
    host_pages: int,
    queue_bytes: int,
    compute_per_s: float,
    bytes_per_s: float,
) -> LowerTiers:
    """Tiers below an executor: `disk`, `host`, or `both`, with rates that stay."""
    spec, (page_bytes, *_) = executor.kv_spec, executor.page_bytes
    tier: Tier | None = None
    if holder != "host":
        record_bytes = page_bytes + 4 * spec.page_len
        tier = DiskTier(folder, disk_pages * (record_bytes + 200), {"model": "scripted"}, record_bytes)
    if holder != "disk":
        tier = HostTier(host_pages * page_bytes, tier)
    assert tier is not None
    rates = Rates(FixedRate(compute_per_s), FixedRate(bytes_per_s), FixedRate(bytes_per_s))
    worker = SteppedWorker(tier, rates, queue_bytes=queue_bytes, fetch_bytes=1 << 30)
    return LowerTiers(spec, executor.page_bytes, worker, rates)


@dataclass(slots=True, eq=False)
class Client:
    """A request, and what its client was told."""

    message: Submit
    kills_at: int | None = None
    """Output tokens of choice 0 with which it kills every engine that goes on with it; -1 is being admitted."""
    began_s: float = 0.0
    ended_s: float = 0.0
    """When its last news came."""
    answers: list[Told] = field(default_factory=list)
    scores: list[Any] | None = None
    cached_len: int | None = None
    """As told with the first token of choice 0."""
    error: TriviumError | None = None
    codes: set[str] = field(default_factory=set)
    """Errors with which choices ended."""
    has_left: bool = False
    reading: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.answers = [Told() for _ in range(self.message.params.num_draws)]

    @property
    def is_done(self) -> bool:
        """Whether its stream has ended."""
        return self.reading is not None and self.reading.done()

    def take(self, news: Delta) -> None:
        """Append what a delta brings."""
        told = self.answers[news.choice]
        assert told.finish is None, "an answer goes on after its end"
        assert news.first_token == len(told.tokens) or not news.token_ids, "tokens are missing or come twice"
        told.tokens += news.token_ids
        told.text += news.text
        told.logprobs += news.logprobs or []
        told.finish, told.stop_reason = news.finish_reason, news.stop_reason
        if news.prompt_logprobs is not None:
            assert self.scores is None, "the prompt is scored twice"
            self.scores = news.prompt_logprobs
        if news.error_code is not None:
            self.codes.add(news.error_code)
        if self.cached_len is None and news.choice == 0 and (news.token_ids or news.finish_reason == "length"):
            self.cached_len = news.cached_len


class MortalEngine:
    """Whoever asks it sees one engine."""

    def __init__(self, make_loop: Callable[[Mapping[str, Any]], EngineLoop], folder: Path, clock: FakeClock) -> None:
        """Begin without an engine.

        Args:
            make_loop: Makes a loop over a `MortalExecutor`; given hooks that it passes to `ModelLimits`.
            folder: For journals.
            clock: Everybody's.
        """
        self._make_loop = make_loop
        self._folder = folder
        self.clock = clock
        self.table = StreamTable(clock)
        self.replay = Replay(self.table, MAX_HELD)
        self.clients: dict[str, Client] = {}
        self.loop: EngineLoop | None = None
        self.epoch = 0
        self.on_step: Callable[[EngineLoop], None] = lambda loop: None
        """Called when a loop was made."""
        self.deaths: list[tuple[LastWork, Death]] = []
        self._inbox: list[Submit | Abort] = []
        self._admitting: str | None = None
        self.has_delivered = False
        """Whether the present engine has delivered a token."""
        self._events = asyncio.new_event_loop()

    @property
    def executor(self) -> MortalExecutor:
        """That of the present engine."""
        assert self.loop is not None
        executor = self.loop._executor
        assert isinstance(executor, MortalExecutor)
        return executor

    # -- clients ----------------------------------------------------------------------------------------------

    def ask(self, client: Client) -> None:
        """Send a request."""
        message, client.began_s = client.message, self.clock.now_s()
        self.clients[message.request_id] = client

        async def read() -> None:
            try:
                async for news in self.table.run(message, lambda: self.replay.submit(message), self._abort):
                    client.take(news)
                    client.ended_s = self.clock.now_s()
            except TriviumError as error:
                client.error, client.ended_s = error, self.clock.now_s()

        client.reading = self._events.create_task(read())
        self._turn()

    def leave(self, client: Client) -> None:
        """Hang up."""
        if not client.is_done and client.reading is not None:
            client.has_left = True
            client.reading.cancel()
            self._turn()

    @property
    def is_open(self) -> bool:
        """Whether a client waits for anything."""
        return any(not client.is_done for client in self.clients.values())

    async def _abort(self, request_id: str) -> None:
        has_sent = self.replay.has_sent(request_id)
        self.replay.leave(request_id)
        if has_sent and self.loop is not None:
            self._inbox.append(Abort([request_id]))

    def _turn(self) -> None:
        """Let every client read what has come."""

        async def turn() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        self._events.run_until_complete(turn())
        for client in self.clients.values():
            if client.is_done and client.reading is not None and not client.reading.cancelled():
                client.reading.result()

    # -- the engine -------------------------------------------------------------------------------------------

    def step(self, seconds: float = 0.0, *, loses_news: bool = False) -> None:
        """Take messages and run a step, in a new engine where there is none; it may be killed with its last news."""
        if self.loop is None:
            self._start()
        assert self.loop is not None
        try:
            self._take_messages(self.loop)
            self.clock.advance(seconds)
            news = self.loop.step() if self.loop.has_work else []
        except EngineKilledError:
            self.kill()
            return
        if loses_news:
            self.kill()
            return
        self.table.feed_all(news)
        for refused in self.loop.take_refusals():
            self.table.refuse(refusal(self.epoch, refused.request_id, refused.error))
        self.has_delivered |= any(each.token_ids for each in news)
        self.replay.tick()
        self.replay.advance()
        self._turn()

    def kill(self) -> None:
        """Lose the engine, and everything that is only in its memory."""
        if self.loop is None:
            return
        work = read_journal(self._journal_folder)
        self._drop()
        death = self.replay.died(work, "somebody ended the engine", has_delivered=self.has_delivered)
        self.deaths.append((work, death))
        self._turn()

    def end_in_good_order(self) -> None:
        """Let the engine close; only when nothing is open."""
        if self.loop is not None:
            loop, self.loop = self.loop, None
            loop.close()
            self.replay.pause()

    def close(self) -> None:
        """End everything."""
        for client in self.clients.values():
            self.leave(client)
        self.end_in_good_order()
        self._events.close()

    @property
    def _journal_folder(self) -> Path:
        return self._folder / str(self.epoch)

    def _start(self) -> None:
        self.epoch += 1
        self._journal_folder.mkdir()
        self.has_delivered, self._inbox = False, []
        self.loop = loop = self._make_loop({"rope_variant": self._die_of_admitting})
        loop.journal = Journal(self._journal_folder)
        note = loop._note

        def note_and_die(answers: Sequence[Answer], unread: Sequence[Answer]) -> None:
            note(answers, unread)
            scheduled, _ = loop._last_step
            assert scheduled is not None
            for entry in scheduled.entries:
                kills_at = self.clients[entry.request.request_id.partition("#")[0]].kills_at
                is_due = kills_at is not None and 0 <= kills_at <= entry.request.output_len
                if entry.request.choice == 0 and is_due and entry.draws:
                    raise EngineKilledError(entry.request.request_id)

        loop._note = note_and_die  # type: ignore[method-assign]
        self.on_step(loop)
        self.replay.begin(self._inbox.append)

    def _take_messages(self, loop: EngineLoop) -> None:
        inbox, self._inbox[:] = tuple(self._inbox), ()
        for message in inbox:
            if isinstance(message, Abort):
                loop.abort(message.request_ids)
            else:
                self._submit(loop, message)

    def _submit(self, loop: EngineLoop, message: Submit) -> None:
        self._admitting = message.request_id
        try:
            loop.submit(message)
        except (RequestError, CapacityError) as error:
            self.table.refuse(refusal(self.epoch, message.request_id, error))
        finally:
            self._admitting = None

    def _die_of_admitting(self, _: int) -> str:
        if self._admitting is not None and self.clients[self._admitting].kills_at == -1:
            assert self.loop is not None
            assert self.loop.journal is not None
            self.loop.journal.close()  # nobody tidies up after a kill
            raise EngineKilledError(self._admitting)
        return "one"

    def _drop(self) -> None:
        loop, self.loop = self.loop, None
        assert loop is not None
        assert loop.journal is not None
        loop.journal.close()
        if loop._tiers is not None and isinstance(loop._tiers.worker, SteppedWorker):
            loop._tiers.worker.lose()
        self._inbox = []
