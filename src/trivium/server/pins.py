"""Pinned prompts of one server: they outlive the engine in which they were made.

An engine keeps the pages, the server knows what was asked for. When an engine has died, its requests go on in the next
one first; then each pin whose time has not passed is computed and pinned again, under its old id::

    engine 1   pin a, pin b ✝
    engine 2                   open requests ... compute a, pin a ... compute b, refused: tried again later
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.base.errors import CapacityError, EngineDeadError, InvalidParameterError, TriviumError
from trivium.config.sampling import SamplingParams
from trivium.server.errors import AnswerFailedError
from trivium.server.generate import check_end

if TYPE_CHECKING:
    from trivium.base.clock import Clock
    from trivium.engine.adapters import AdapterRecord
    from trivium.server.ports import EnginePort

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 5.0
_RESTORE_AGAIN_S = 1.0
"""Pause before what could not be pinned in a new engine is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPin:
    """What somebody wants to stay in the cache."""

    pin_id: str
    ids: Sequence[int]
    cache_salt: str
    adapter: AdapterRecord | None = None
    """The loading that computes it."""
    expires_s: float | None
    """On the server's clock; `None` means never."""


class KeptPins:
    """Pins prompts in one engine after another; used from one event loop.

    Invariants:
        A pin is open, restored or forgotten; a later engine never has one that was unpinned.
    """

    def __init__(self, engine: EnginePort, clock: Clock) -> None:
        """Begin with none."""
        self._engine = engine
        self._clock = clock
        self._pins: dict[str, KeptPin] = {}
        self._restoring: asyncio.Task[None] | None = None
        engine.watch_starts(self._engine_started)

    async def pin(
        self, ids: Sequence[int], cache_salt: str, ttl_s: float | None, *, adapter: str | None = None
    ) -> tuple[str, int]:
        """Compute a prompt unless it is cached, and keep it; returns the pin's id, and how many tokens are kept.

        One of an adapter that is unloaded, or loaded anew, is not made again in a later engine.

        Raises:
            InvalidParameterError: The prompt has no whole page, or is more than all pins may hold.
            CapacityError: Too much is pinned already, or memory is too short to keep it.
            TriviumError: The prompt cannot be computed.
        """
        expires_s = None if ttl_s is None else self._clock.now_s() + ttl_s
        record = self._engine.adapters.find(adapter)
        wanted = KeptPin(
            pin_id=f"pin-{uuid.uuid4().hex}", ids=ids, cache_salt=cache_salt, expires_s=expires_s, adapter=record
        )
        epoch = self._engine.status().epoch
        answer = await self._make(wanted)
        if "refused" in answer:
            if answer["is_final"]:
                raise InvalidParameterError(f"the prompt cannot be pinned: {answer['refused']}", param="prompt")
            raise CapacityError(f"the prompt was not pinned: {answer['refused']}", retry_after_s=_RETRY_AFTER_S)
        self._pins = {pin_id: pin for pin_id, pin in self._pins.items() if not self._has_expired(pin)}
        self._pins[wanted.pin_id] = wanted
        if self._engine.status().epoch != epoch:  # perhaps it was made in the one that is gone
            self._engine_started()
        return wanted.pin_id, int(answer["tokens"])

    async def unpin(self, pin_id: str) -> bool:
        """Let a prompt go; returns whether it was pinned, or about to be pinned again.

        Raises:
            EngineDeadError: There is no engine that could be asked; nothing has changed.
        """
        answer = await self._engine.call("unpin", {"pin_id": pin_id})
        kept = self._pins.pop(pin_id, None)
        return bool(answer["unpinned"]) or (kept is not None and not self._has_expired(kept))

    def close(self) -> None:
        """Restore nothing any more."""
        if self._restoring is not None:
            self._restoring.cancel()

    def _engine_started(self) -> None:
        """Pin again what is wanted: the new engine has nothing."""
        self.close()
        if self._pins:
            self._restoring = asyncio.create_task(self._restore(), name="trivium-pins")

    async def _restore(self) -> None:
        missing = list(self._pins.values())
        while missing := [pin for pin in missing if not await self._is_settled(pin)]:
            await asyncio.sleep(_RESTORE_AGAIN_S)

    async def _is_settled(self, pin: KeptPin) -> bool:
        """Pin a prompt in a new engine; returns whether there is nothing more to be done for it."""
        if self._has_gone(pin):
            return True
        try:
            answer = await self._make(pin)
        except (CapacityError, EngineDeadError):
            return False
        except AnswerFailedError as error:
            answer = {"refused": str(error), "is_final": error.retry_after_s is None}
        except TriviumError as error:
            answer = {"refused": str(error), "is_final": True}
        if "refused" not in answer:
            if self._has_gone(pin):  # meanwhile
                await self._engine.call("unpin", {"pin_id": pin.pin_id})
            return True
        if answer["is_final"]:
            logger.error("%s is not kept in the new engine: %s", pin.pin_id, answer["refused"])
            self._pins.pop(pin.pin_id, None)
        return bool(answer["is_final"])

    async def _make(self, pin: KeptPin) -> dict[str, Any]:
        """Run a prompt, drawing nothing, and pin it; what is cached of it costs nothing."""
        params = SamplingParams(max_tokens=0, temperature=0)
        computing = self._engine.submit(
            pin.ids,
            params,
            request_id=f"{pin.pin_id}-{uuid.uuid4().hex[:8]}",
            cache_salt=pin.cache_salt,
            adapter=None if pin.adapter is None else pin.adapter.name,
        )
        async for delta in computing:
            check_end(delta)
        left_s = None if pin.expires_s is None else max(pin.expires_s - self._clock.now_s(), 0.0)
        asked = {"pin_id": pin.pin_id, "prompt_ids": list(pin.ids), "cache_salt": pin.cache_salt, "ttl_s": left_s}
        if pin.adapter is not None:
            asked |= {"adapter": pin.adapter.name, "adapter_generation": pin.adapter.generation}
        return await self._engine.call("pin", asked)

    def _has_gone(self, pin: KeptPin) -> bool:
        return pin.pin_id not in self._pins or self._has_expired(pin) or not self._has_adapter(pin)

    def _has_adapter(self, pin: KeptPin) -> bool:
        return pin.adapter is None or pin.adapter in self._engine.adapters

    def _has_expired(self, pin: KeptPin) -> bool:
        return pin.expires_s is not None and self._clock.now_s() >= pin.expires_s
