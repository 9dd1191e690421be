"""Adapters as servers and asyncio programs see them: loaded and unloaded in an engine, while it runs, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress

from trivium.base.errors import EngineDeadError
from trivium.engine.adapter_names import AdapterNames
from trivium.engine.adapters import AdapterRecord
from trivium.engine.operations import result_of

Ask = Callable[[str, Mapping[str, object], float], Awaitable[dict[str, object]]]
"""Calls an engine: name, arguments, and the seconds that an answer may take."""

LOAD_TIMEOUT_S = 600.0
FORGET_TIMEOUT_S = 10.0


class ServedAdapters:
    """The adapters of one engine, and of those that are started after it; used from one event loop."""

    def __init__(self, ask: Ask) -> None:
        """Begin with none."""
        self._ask = ask
        self.names = AdapterNames()

    def __iter__(self) -> Iterator[AdapterRecord]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        """Whether an adapter has that name; for a record: whether its name still means it."""
        return name in self.names

    def find(self, name: str | None) -> AdapterRecord | None:
        """Return what a name means now; nothing for none.

        Raises:
            ModelNotFoundError: No adapter has it.
        """
        return None if name is None else self.names.find(name)

    async def load(self, name: str, path: str, *, taken: Collection[str] = (), in_place: bool = False) -> AdapterRecord:
        """Load an adapter; requests may use it when this returns.

        Args:
            name: What requests call it.
            path: Its folder, as the engine's process sees it.
            taken: Names that mean other models.
            in_place: Whether it may replace one of the same name, whose requests go on with what they began with.

        Raises:
            InvalidParameterError: The name is none, or taken.
            AdapterError: The adapter cannot be read, or does not fit the model.
            CapacityError: There is not enough memory.
            EngineDeadError: There is no engine, or it died meanwhile.
        """
        with self.names.loading(name, taken, in_place=in_place) as generation:
            asked = {"name": name, "path": path, "generation": generation}
            record = result_of(await self._ask("load_adapter", asked, LOAD_TIMEOUT_S))
            replaced = self.names.add(record)
        if replaced is not None:
            await self._forget(replaced)
        return record

    async def unload(self, name: str) -> AdapterRecord:
        """Let a name mean nothing; requests that began with the adapter go on.

        Raises:
            ModelNotFoundError: No adapter has it.
        """
        record = self.names.remove(name)
        await self._forget(record)
        return record

    async def _forget(self, record: AdapterRecord) -> None:
        with suppress(EngineDeadError):  # the next one never has it
            await self._ask("unload_adapter", {"generation": record.generation}, FORGET_TIMEOUT_S)
