"""Open calls on the client's side: questions to the engine that are no requests, each answered exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from trivium.base.errors import EngineDeadError, InternalError
from trivium.engine.messages import Call, Reply


class CallTable:
    """Routes replies to the calls that wait for them."""

    def __init__(self) -> None:
        self._open: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._next_id = 0

    async def ask(
        self, name: str, arguments: Mapping[str, object], send: Callable[[Call], None], *, timeout_s: float
    ) -> dict[str, object]:
        """Send a call and wait for its reply.

        Raises:
            EngineDeadError: The engine died, or does not answer in time.
            InternalError: The engine could not do it.
        """
        self._next_id += 1
        call_id = self._next_id
        answer: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._open[call_id] = answer
        try:
            send(Call(call_id, name, dict(arguments)))
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise EngineDeadError(f"the engine did not answer '{name}' within {timeout_s:g} s") from None
        finally:
            self._open.pop(call_id, None)

    def unanswered(self, name: str, arguments: Mapping[str, object]) -> Call:
        """Write a call whose reply nobody waits for."""
        self._next_id += 1
        return Call(self._next_id, name, dict(arguments))

    def settle(self, message: Reply) -> None:
        """Give a reply to its call; drop it when nobody waits."""
        answer = self._open.get(message.call_id)
        if answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(InternalError(message.error))
        else:
            answer.set_result(message.result)

    def fail_all(self, reason: str) -> None:
        """End every open call with `EngineDeadError`."""
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(reason))
