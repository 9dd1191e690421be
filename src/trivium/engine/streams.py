"""Open requests on the client's side: how one is sent, sent again, its queue, fed with deltas and ended exactly once.

A stream remembers what was delivered of each choice. So when its engine is gone, `again` writes the request for the
next engine, which continues where the dead one stopped; what was seen before is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import structs

from trivium.base import errors
from trivium.base.clock import Clock, SystemClock
from trivium.base.errors import CapacityError, InternalError, RequestError, TriviumError
from trivium.engine.messages import Delivered, Delta, Refused, Submit

if TYPE_CHECKING:
    from random import Random

    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.adapters import AdapterRecord

logger = logging.getLogger(__name__)

OnNews = Callable[[Delta], bool]
"""Takes news of a request at once, without waking the task that reads it; returns whether it did."""

_ERRORS: Mapping[str, type[TriviumError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TriviumError)
}


def error_from(kind: str, message: str, param: str | None = None, retry_after_s: float | None = None) -> TriviumError:
    """Rebuild an error of the tree from its class name; an unknown name is an `InternalError`."""
    error_type = _ERRORS.get(kind, InternalError)
    if issubclass(error_type, RequestError):
        return error_type(message, param=param)
    if issubclass(error_type, CapacityError):
        return error_type(message, retry_after_s=1.0 if retry_after_s is None else retry_after_s)
    return error_type(message)


def new_submit(  # noqa: PLR0913  (what a request is made of, by name)
    prompt_ids: Sequence[int],
    params: SamplingParams,
    seeds: Random,
    *,
    request_id: str | None,
    cache_salt: str,
    priority: int,
    tenant: str,
    program: ProgramShare | None = None,
    deadline_s: float | None,
    adapter: AdapterRecord | None = None,
) -> Submit:
    """Write a request so that it can be replayed: with an id and a seed, drawn where none was given."""
    if params.seed is None:
        params = replace(params, seed=seeds.getrandbits(63))
    return Submit(
        request_id=request_id or uuid.uuid4().hex,
        prompt_ids=list(prompt_ids),
        params=params,
        cache_salt=cache_salt,
        priority=priority,
        tenant=tenant,
        program=program,
        deadline_s=deadline_s,
        adapter=None if adapter is None else adapter.name,
        adapter_generation=0 if adapter is None else adapter.generation,
    )


@dataclass(slots=True)
class _Stream:
    """A request, what was delivered of it, and what has come and was not read yet; one task reads."""

    message: Submit
    began_s: float
    on_news: OnNews | None = None
    delivered: list[Delivered] = field(default_factory=list)
    num_open: int = 0
    """Choices whose end has not been read."""
    arrived: deque[Delta | TriviumError] = field(default_factory=deque)
    reader: asyncio.Future[None] | None = None
    """What the reader waits for, or waited for last."""
    was_accepted: bool = False
    """Whether an engine has taken the request."""
    has_ended: bool = False
    """Whether its last choice has ended, or an error has."""

    def __post_init__(self) -> None:
        self.num_open = self.message.params.num_draws
        self.delivered = [Delivered() for _ in range(self.num_open)]

    def take(self, news: Delta) -> None:
        """Note what a delta delivers, and hand it on; drop it when it was seen before."""
        told = self.delivered[news.choice]
        if self.has_ended or told.is_finished or news.first_token < len(told.token_ids):
            return
        if news.first_token > len(told.token_ids):
            self.end(InternalError(f"token {len(told.token_ids)} of choice {news.choice} was never delivered"))
            return
        if news.token_ids:
            told.token_ids += news.token_ids
            told.cumulative_logprob, told.cached_len = news.cumulative_logprob, news.cached_len
        elif news.finish_reason is None:
            if self.was_accepted:
                return  # the next engine has accepted it too
            self.was_accepted = True
        if news.finish_reason is not None:
            told.is_finished = True
            self.has_ended = all(choice.is_finished for choice in self.delivered)
        self.put(news)

    def end(self, error: TriviumError) -> None:
        """End with an error, unless everything has been delivered."""
        if not self.has_ended:
            self.has_ended = True
            self.put(error)

    def put(self, item: Delta | TriviumError) -> None:
        """Hand something to the reader, or past it to `on_news`."""
        if self.on_news is not None and isinstance(item, Delta) and self._is_taken(item, self.on_news):
            return
        self.arrived.append(item)
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def _is_taken(self, news: Delta, on_news: OnNews) -> bool:
        """Offer news to `on_news`, if the reader has dealt with all before and waits, and they end nothing."""
        if news.finish_reason is not None or self.arrived or self.reader is None or self.reader.done():
            return False
        try:
            return on_news(news)
        except Exception:
            logger.exception("news could not be taken in passing; the reader meets them")
            self.on_news = None
            return False

    async def wait(self) -> None:
        """Wait until something has come."""
        while not self.arrived:
            self.reader = asyncio.get_running_loop().create_future()
            await self.reader


class StreamTable:
    """Routes deltas to the requests that wait for them.

    Invariants:
        A delta that was already seen (by its first token index) is dropped.
        After the last choice's finish, or an error, nothing is delivered any more.
        When it has been read to its end, or its reader has left, a request is forgotten.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Begin with nobody; `clock` measures ages and deadlines, by default the machine's."""
        self.clock = clock or SystemClock()
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._streams

    def open_ids(self) -> list[str]:
        """Return the requests that have not ended, in order of arrival."""
        return [request_id for request_id, stream in self._streams.items() if not stream.has_ended]

    def begun_ids(self) -> set[str]:
        """Return those of which a token has been delivered."""
        return {each for each, stream in self._streams.items() if any(told.token_ids for told in stream.delivered)}

    def adapters_in_use(self) -> set[int]:
        """Return the generations of the adapters that open requests began with."""
        return {stream.message.adapter_generation for stream in self._streams.values() if stream.message.adapter}

    def counts(self, request_id: str) -> list[int] | None:
        """Return the number of tokens delivered of each choice, -1 for one that has ended; `None` for no request."""
        stream = self._streams.get(request_id)
        if stream is None or stream.has_ended:
            return None
        return [-1 if told.is_finished else len(told.token_ids) for told in stream.delivered]

    def was_accepted(self, request_id: str) -> bool:
        """Return whether an engine has taken a request that is open."""
        return self._streams[request_id].was_accepted

    def age_s(self, request_id: str, now_s: float) -> float:
        """Return how long ago an open request arrived."""
        return now_s - self._streams[request_id].began_s

    def again(self, request_id: str, now_s: float) -> Submit:
        """Write an open request for an engine that does not know it: with all that was delivered, and its age."""
        stream = self._streams[request_id]
        return structs.replace(
            stream.message,
            delivered=stream.delivered,
            was_accepted=stream.was_accepted,
            waited_s=now_s - stream.began_s,
        )

    def overdue_ids(self, now_s: float) -> list[str]:
        """Return the open requests whose own deadline has passed."""
        return [
            each
            for each, stream in self._streams.items()
            if not stream.has_ended
            and stream.message.deadline_s is not None
            and now_s - stream.began_s >= stream.message.deadline_s
        ]

    def feed(self, news: Delta) -> None:
        """Give a delta to its request; drop it when nobody waits or its tokens were seen."""
        stream = self._streams.get(news.request_id)
        if stream is not None:
            stream.take(news)

    def feed_all(self, deltas: Iterable[Delta]) -> None:
        """Give each delta to its request."""
        for news in deltas:
            self.feed(news)

    def refuse(self, message: Refused) -> None:
        """End a request that the engine did not take."""
        error = error_from(message.kind, message.message, message.param, message.retry_after_s)
        self.fail(message.request_id, error)

    def fail(self, request_id: str, error: TriviumError) -> None:
        """End one request with an error."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.end(error)

    def fail_all(self, make_error: type[TriviumError], message: str) -> None:
        """End every open request with an error of its own."""
        for request_id in tuple(self._streams):
            self.fail(request_id, make_error(message))

    async def run(
        self,
        message: Submit,
        send: Callable[[], None],
        abort: Callable[[str], Awaitable[None]],
        on_news: OnNews | None = None,
    ) -> AsyncGenerator[Delta]:
        """Send a request and yield its deltas until each of its choices has ended.

        Args:
            message: The request.
            send: Hands it to the engine.
            abort: Told the request's id when the reader leaves before the end.
            on_news: Offered what comes while the reader waits and ends no choice; what it takes is not yielded.

        Raises:
            TriviumError: The request could not be sent, was refused, or its engine died.
        """
        request_id = message.request_id
        stream = self._open(message, on_news)
        has_ended = False
        try:
            send()
            while stream.num_open:
                await stream.wait()
                item = stream.arrived.popleft()
                if isinstance(item, TriviumError):
                    raise item
                if item.finish_reason is not None:
                    stream.num_open -= 1
                yield item
            has_ended = True
        except TriviumError:
            has_ended = True
            raise
        finally:
            del self._streams[request_id]
            if not has_ended:
                await abort(request_id)

    def _open(self, message: Submit, on_news: OnNews | None) -> _Stream:
        """Begin to listen for a request.

        Raises:
            InternalError: The id is open already.
        """
        request_id = message.request_id
        errors.ensure(request_id not in self._streams, f"request id '{request_id}' is open already")
        stream = self._streams[request_id] = _Stream(message, self.clock.now_s(), on_news)
        return stream
