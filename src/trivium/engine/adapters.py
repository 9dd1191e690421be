"""The adapters of one engine: read beside the loop, kept prepared, put into the executor's slots before steps.

::

    folder ── read, check, prepare (a thread of low priority) ──► held, by generation ── step needs it ──► slot
                                                                        ▲                                  │
                                                                        └── another one needs the slot ────┘

A generation is one loading of one adapter; the side that talks to clients counts them and knows their names
(`adapter_names`). A name that is loaded anew has another generation, and with it another cache namespace. Requests keep
what they began with: an adapter that was unloaded goes when the last of them has ended.

What is prepared is what kernels read, so that putting it into a slot costs nothing, and no load holds up a step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivium.base.errors import AdapterError, CapacityError, ModelError, ModelNotFoundError, ensure
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from trivium.runtime.adapters import PreparedAdapter
    from trivium.runtime.executor import Executor
    from trivium.schedule.adapter_slots import AdapterSlots
    from trivium.weights.peft import PeftAdapter

logger = logging.getLogger(__name__)

ReadAdapter = Callable[[Path], "PeftAdapter"]
"""Reads a folder and checks it against the model."""

_NICE = 10


class AdapterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a loaded adapter, and enough to load it again elsewhere."""

    name: str
    path: str
    generation: int
    """Which loading it is, from 1; never used again."""
    rank: int
    """Largest of its matrices."""
    num_bytes: int
    """Memory that it takes."""
    base_model: str | None
    """What its configuration says that it was trained on."""
    fingerprint: str
    """Of its files."""
    load_seconds: float


class HeldAdapter:
    """An adapter in the engine's memory; requests refer to it."""

    __slots__ = ("prepared", "record")

    def __init__(self, record: AdapterRecord, prepared: PreparedAdapter) -> None:
        self.record = record
        self.prepared = prepared

    @property
    def namespace(self) -> tuple[Hashable, ...]:
        """What keeps its KV apart: the loading, and the contents.

        Generations are counted anew when a server starts, and disks keep KV.
        """
        return ("adapter", self.record.generation, self.record.fingerprint)


class EngineAdapters:
    """The adapters that requests of one engine may use.

    `load` and `submit` may be called from any thread; everything else belongs to the loop's.
    """

    def __init__(
        self, executor: Executor, slots: AdapterSlots, read: ReadAdapter, available_bytes: Callable[[], int]
    ) -> None:
        """Begin with none.

        Args:
            executor: Prepares adapters and has the slots.
            slots: Says which adapter goes where.
            read: Reads an adapter's folder.
            available_bytes: Memory that this process may still take.
        """
        self._executor = executor
        self._slots = slots
        self._read = read
        self._available_bytes = available_bytes
        self._held: dict[int, HeldAdapter] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._loads: set[Future[AdapterRecord]] = set()

    @property
    def is_loading(self) -> bool:
        """Whether a load that was submitted has not ended."""
        self._loads = {each for each in self._loads if not each.done()}
        return bool(self._loads)

    @property
    def records(self) -> list[AdapterRecord]:
        """Those that new requests may use, oldest first."""
        return [held.record for held in self._held.values()]

    def load(self, name: str, path: str, generation: int, fingerprint: str | None = None) -> AdapterRecord:
        """Read an adapter and keep it.

        Args:
            name: For messages.
            path: Its folder.
            generation: Not used before.
            fingerprint: What its files must be, where an earlier engine had it; `None`: whatever they are.

        Raises:
            AdapterError: It cannot be read, does not fit the model, or has changed.
            CapacityError: There is not enough memory.
        """
        began_s = time.perf_counter()
        try:
            read = self._read(Path(path))
            if fingerprint is not None and read.fingerprint != fingerprint:
                raise AdapterError(f"adapter '{name}': its files have changed since it was loaded")
            self._check_memory(name, read)
            prepared = self._executor.prepare_adapter(read.products)
        except ModelError as error:
            raise AdapterError(f"adapter '{name}': {error}", param="lora_path") from error
        record = AdapterRecord(
            name=name,
            path=path,
            generation=generation,
            rank=read.rank,
            num_bytes=prepared.num_bytes,
            base_model=read.base_model,
            fingerprint=read.fingerprint,
            load_seconds=round(time.perf_counter() - began_s, 3),
        )
        ensure(generation not in self._held, f"adapter generation {generation} is there already")
        self._held[generation] = HeldAdapter(record, prepared)
        logger.info(
            "adapter '%s' (rank %d, %s) loaded in %.2f s", name, read.rank, format_bytes(prepared.num_bytes),
            record.load_seconds
        )  # fmt: skip
        return record

    def submit(self, name: str, path: str, generation: int) -> Future[AdapterRecord]:
        """Begin `load` in a thread of its own, which lets those that compute go first."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "trivium-adapters", _step_back)
        load = self._pool.submit(self.load, name, path, generation)
        self._loads.add(load)
        return load

    def unload(self, generation: int) -> bool:
        """Let no new request use an adapter; returns whether it was there."""
        held = self._held.pop(generation, None)
        if held is None:
            return False
        self._slots.retire(held)
        return True

    def find(self, name: str, generation: int) -> HeldAdapter:
        """Return an adapter for a new request.

        Raises:
            ModelNotFoundError: It is not there, any more.
        """
        held = self._held.get(generation)
        if held is None:
            raise ModelNotFoundError(
                f"The model '{name[:200]}' does not exist: the adapter is not loaded", param="model"
            )
        return held

    def place(self) -> None:
        """Bring the executor's slots to what the next step needs. Between steps."""
        for change in self._slots.take_changes():
            if change.is_taken:
                self._executor.unload_adapter(change.slot)
            if change.adapter is not None:
                self._executor.place_adapter(change.slot, change.adapter.prepared)

    def close(self) -> None:
        """Load nothing more; what is being read is read to its end."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _check_memory(self, name: str, read: PeftAdapter) -> None:
        """Refuse what would not leave this process room to live."""
        needed = sum(one.a.nbytes + one.b.nbytes for one in read.products.values())
        available = self._available_bytes()
        if needed > available:
            raise CapacityError(
                f"adapter '{name}' takes {format_bytes(needed)}, and {format_bytes(available)} are left; unload "
                "another one first",
                retry_after_s=60.0,
            )


def _step_back() -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def records_of(info: Mapping[str, object]) -> list[AdapterRecord]:
    """Read the adapters with which an engine began from what it said of itself."""
    return msgspec.convert(info.get("adapters", []), list[AdapterRecord])
