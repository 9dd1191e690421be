"""Open requests on the client's side: how one is sent, and its queue, fed with deltas and ended exactly once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trivium.base import errors
from trivium.base.errors import CapacityError, InternalError, RequestError, TriviumError
from trivium.engine.messages import Delta, Refused, Submit

if TYPE_CHECKING:
    from random import Random

    from trivium.config.sampling import SamplingParams

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
    num_open: int
    next_token: dict[int, int] = field(default_factory=dict)
    queue: asyncio.Queue[Delta | TriviumError] = field(default_factory=asyncio.Queue)


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

    def open(self, request_id: str, num_choices: int) -> None:
        """Begin to listen for a request.

        Raises:
            InternalError: The id is open already.
        """
        errors.ensure(request_id not in self._streams, f"request id '{request_id}' is open already")
        self._streams[request_id] = _Stream(num_choices)

    def feed(self, news: Delta) -> None:
        """Give a delta to its request; drop it when nobody waits or its tokens were seen."""
        stream = self._streams.get(news.request_id)
        if stream is None:
            return
        seen = stream.next_token.get(news.choice, 0)
        if news.token_ids and news.first_token < seen:
            return
        stream.next_token[news.choice] = max(seen, news.first_token + len(news.token_ids))
        stream.queue.put_nowait(news)

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
            stream.queue.put_nowait(error)

    def fail_all(self, make_error: type[TriviumError], message: str) -> None:
        """End every open request with an error of its own."""
        for request_id in tuple(self._streams):
            self.fail(request_id, make_error(message))

    def close(self, request_id: str) -> None:
        """Stop listening."""
        self._streams.pop(request_id, None)

    async def run(
        self, message: Submit, send: Callable[[], None], abort: Callable[[str], Awaitable[None]]
    ) -> AsyncIterator[Delta]:
        """Send a request and yield its deltas until each of its choices has ended.

        Args:
            message: The request.
            send: Hands it to the engine.
            abort: Told the request's id when the reader leaves before the end.

        Raises:
            TriviumError: The request could not be sent, was refused, or its engine died.
        """
        request_id = message.request_id
        self.open(request_id, message.params.num_draws)
        has_ended = False
        try:
            send()
            async for news in self.read(request_id):
                yield news
            has_ended = True
        except TriviumError:
            has_ended = True
            raise
        finally:
            self.close(request_id)
            if not has_ended:
                await abort(request_id)

    async def read(self, request_id: str) -> AsyncIterator[Delta]:
        """Yield a request's deltas until each of its choices has ended.

        Raises:
            TriviumError: The request was refused, or its engine died.
        """
        stream = self._streams[request_id]
        while stream.num_open:
            item = await stream.queue.get()
            if isinstance(item, TriviumError):
                raise item
            if item.finish_reason is not None:
                stream.num_open -= 1
            yield item
