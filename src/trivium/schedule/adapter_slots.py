"""Which adapter is in which of the executor's slots, and who may start beside whom for that.

A running request holds the slot of its adapter; requests with the same one share it. An adapter that nobody holds any
more stays where it is until another one needs the slot, the one that was used longest ago first::

    slot 0   sql   held by 3 requests
    slot 1   poet  held by nobody      goes next
    slot 2   law   held by nobody

A request whose adapter finds no slot is passed by like one whose pages do not fit, and like that one is overtaken by
nobody once it has waited `aging_s`. What an adapter is, only the engine knows; here it is an object with an identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ensure

if TYPE_CHECKING:
    from trivium.schedule.request import Request


@dataclass(frozen=True, slots=True)
class SlotChange:
    """What an executor is to do with a slot before the next step."""

    slot: int
    is_taken: bool
    """Whether an adapter is in it, which has to go first."""
    adapter: Any
    """What comes into it; `None`: nothing."""


class AdapterSlots:
    """The slots of one executor.

    Invariants:
        Every running request with an adapter holds the slot that its adapter is in; no other slot is held.
    """

    def __init__(self, num_slots: int) -> None:
        """Begin with empty slots."""
        self.num_slots = num_slots
        self._slot_of: dict[Any, int] = {}
        """Those used longest ago come first."""
        self._holders: dict[Any, int] = {}
        self._free = list(range(num_slots - 1, -1, -1))
        self._leaving: set[Any] = set()
        self._changes: list[SlotChange] = []

    @property
    def num_used(self) -> int:
        """Slots that an adapter is in."""
        return len(self._slot_of)

    def has_room(self, adapter: Any) -> bool:
        """Return whether a request with this adapter, or with none, may start."""
        return adapter is None or adapter in self._slot_of or bool(self._free) or len(self._holders) < self.num_slots

    def hold(self, adapter: Any) -> int:
        """Take the slot of an adapter for one more request, putting it into one first if need be.

        Args:
            adapter: There is room for it; or none.

        Returns:
            Its slot; -1 for none.

        Effects:
            Another adapter may have to leave; see `take_changes`.
        """
        if adapter is None:
            return -1
        slot = self._slot_of.pop(adapter, None)
        if slot is None:
            is_taken = not self._free
            slot = self._slot_of.pop(self._idle()) if is_taken else self._free.pop()
            self._changes.append(SlotChange(slot, is_taken, adapter))
        self._slot_of[adapter] = slot
        self._holders[adapter] = self._holders.get(adapter, 0) + 1
        return slot

    def release(self, adapter: Any) -> None:
        """Give a request's hold back; nothing for none."""
        if adapter is None:
            return
        self._holders[adapter] -= 1
        if not self._holders[adapter]:
            del self._holders[adapter]
            if adapter in self._leaving:
                self._empty(adapter)

    def retire(self, adapter: Any) -> None:
        """Empty the slot of an adapter that was unloaded, as soon as nobody holds it."""
        if adapter in self._holders:
            self._leaving.add(adapter)
        elif adapter in self._slot_of:
            self._empty(adapter)

    def take_changes(self) -> Sequence[SlotChange]:
        """Return what the executor is to do before the next step, in order."""
        if not self._changes:
            return ()
        changes, self._changes = self._changes, []
        return changes

    def problems(self, running: Iterable[Request]) -> list[str]:
        """Derive the holders of every slot from the running requests; return the differences."""
        counted: dict[Any, int] = {}
        found = []
        for request in running:
            if request.adapter is not None:
                counted[request.adapter] = counted.get(request.adapter, 0) + 1
            wanted = -1 if request.adapter is None else self._slot_of.get(request.adapter)
            if request.adapter_slot != wanted:
                found.append(f"{request.request_id} runs in adapter slot {request.adapter_slot}, not {wanted}")
        if counted != self._holders:
            found.append(f"adapter slots have {self._holders} holders, {counted} run")
        if sorted([*self._slot_of.values(), *self._free]) != list(range(self.num_slots)):
            found.append(f"adapter slots {sorted(self._slot_of.values())} are used and {sorted(self._free)} free")
        return found

    def _idle(self) -> Any:
        """Return the adapter that nobody holds and that was used longest ago."""
        idle = next((each for each in self._slot_of if each not in self._holders), None)
        ensure(idle is not None, f"all {self.num_slots} adapter slots are held")
        return idle

    def _empty(self, adapter: Any) -> None:
        self._leaving.discard(adapter)
        slot = self._slot_of.pop(adapter)
        self._free.append(slot)
        self._changes.append(SlotChange(slot, True, None))  # noqa: FBT003 - a row
