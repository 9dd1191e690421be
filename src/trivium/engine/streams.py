"""Open requests on the client's side: how one is sent, and its queue, fed with deltas and ended exactly once."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trivium.base import errors
from trivium.base.errors import CapacityError, InternalError, RequestError, TriviumError
from trivium.engine.messages import Delta, Refused, Submit

if TYPE_CHECKING:
    from random import Random

    from trivium.config.sampling import SamplingParams

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


def new_submit(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    seeds: Random,
    *,
    request_id: str | None,
    cache_salt: str,
    priority: int,
    deadline_s: float | None,
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
        deadline_s=deadline_s,
    )


@dataclass(slots=True)
class _Stream:
    """What has come for a request and was not read yet; one task reads."""

    num_open: int
    next_token: dict[int, int] = field(default_factory=dict)
    arrived: deque[Delta | TriviumError] = field(default_factory=deque)
    on_news: OnNews | None = None
    reader: asyncio.Future[None] | None = None
    """What the reader waits for, or waited for last."""

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
        After the last choice's finish, or an error, the request is forgotten.
    """

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._streams

    def feed(self, news: Delta) -> None:
        """Give a delta to its request; drop it when nobody waits or its tokens were seen."""
        stream = self._streams.get(news.request_id)
        if stream is None:
            return
        if news.token_ids:
            if news.first_token < stream.next_token.get(news.choice, 0):
                return
            stream.next_token[news.choice] = news.first_token + len(news.token_ids)
        stream.put(news)

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
            stream.put(error)

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
    ) -> AsyncIterator[Delta]:
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
        stream = self._open(request_id, message.params.num_draws, on_news)
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

    def _open(self, request_id: str, num_choices: int, on_news: OnNews | None) -> _Stream:
        """Begin to listen for a request.

        Raises:
            InternalError: The id is open already.
        """
        errors.ensure(request_id not in self._streams, f"request id '{request_id}' is open already")
        stream = self._streams[request_id] = _Stream(num_choices, on_news=on_news)
        return stream
