"""The names under which adapters are served: which loading each means now, on the side that talks to clients.

It outlives engines: `to_restore` says what a new one must have, so that requests go on with the very adapter with which
they began, and names mean what they meant.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from trivium.base.errors import InvalidParameterError, ModelNotFoundError
from trivium.engine.adapters import AdapterRecord

MAX_NAME_CHARS = 200
_NAME = re.compile(r"[^\s,\x00-\x1f\x7f-\x9f]+")


class AdapterNames:
    """Names to loadings; used from any thread.

    Invariants:
        A generation is given out once.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._by_name: dict[str, AdapterRecord] = {}
        self._left: dict[int, AdapterRecord] = {}
        """Those that were unloaded and that requests may still use."""
        self._loading: set[str] = set()
        self._last_generation = 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[AdapterRecord]:
        return iter(tuple(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        if isinstance(name, AdapterRecord):
            return self._by_name.get(name.name) is name
        return name in self._by_name

    def begin(self, records: Iterable[AdapterRecord]) -> None:
        """Take those with which the first engine began."""
        for record in records:
            self._by_name[record.name] = record
            self._last_generation = max(self._last_generation, record.generation)

    def keep(self, records: Iterable[AdapterRecord]) -> None:
        """Forget the names of what a later engine has not: its files were gone, or had changed."""
        there = {record.generation for record in records}
        self._by_name = {name: record for name, record in self._by_name.items() if record.generation in there}

    def find(self, name: str) -> AdapterRecord:
        """Return what a name means now.

        Raises:
            ModelNotFoundError: Nothing.
        """
        record = self._by_name.get(name)
        if record is None:
            raise ModelNotFoundError(f"The model '{name[:MAX_NAME_CHARS]}' does not exist", param="model")
        return record

    def known(self, name: str, path: str) -> AdapterRecord | None:
        """Return what a name means, where a folder is named beside it; `None`: it is to be loaded from there first.

        Args:
            name: The adapter's.
            path: Its folder; empty: wherever it was loaded from.

        Raises:
            ModelNotFoundError: It means nothing, and there is no folder.
            InvalidParameterError: It means the adapter of another folder.
        """
        if not path:
            return self.find(name)
        record = self._by_name.get(name)
        if record is not None and record.path != path:
            raise InvalidParameterError(
                f"adapter '{name}' was loaded from {record.path}, not from {path}; give the other one another name, or "
                "load it in place with load_lora",
                param="lora_request",
            )
        return record

    def is_loading(self, name: str) -> bool:
        """Whether the adapter of a name is being loaded."""
        return name in self._loading

    @contextmanager
    def loading(self, name: str, taken: Collection[str], *, in_place: bool) -> Iterator[int]:
        """Reserve a name while its adapter is loaded; gives the generation.

        Args:
            name: The adapter's.
            taken: Names that mean other models.
            in_place: Whether it may replace an adapter of the same name.

        Raises:
            InvalidParameterError: It is no name, or taken.
        """
        check_adapter_name(name)
        if name in taken:
            raise InvalidParameterError(
                f"lora_name is '{name}', which is a name of the base model; choose another", param="lora_name"
            )
        with self._lock:
            generation = self._reserve(name, in_place=in_place)
        try:
            yield generation
        finally:
            self._loading.discard(name)

    def _reserve(self, name: str, *, in_place: bool) -> int:
        if name in self._loading:
            raise InvalidParameterError(f"The lora adapter '{name}' is being loaded already", param="lora_name")
        if name in self._by_name and not in_place:
            raise InvalidParameterError(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True",
                param="lora_name",
            )
        self._loading.add(name)
        self._last_generation += 1
        return self._last_generation

    def add(self, record: AdapterRecord) -> AdapterRecord | None:
        """Let a name mean an adapter from now on; returns the one that it replaces."""
        with self._lock:
            replaced = self._by_name.pop(record.name, None)
            if replaced is not None:
                self._left[replaced.generation] = replaced
            self._by_name[record.name] = record
            return replaced

    def remove(self, name: str) -> AdapterRecord:
        """Let a name mean nothing any more.

        Raises:
            ModelNotFoundError: It means nothing.
        """
        with self._lock:
            record = self._by_name.pop(name, None)
            if record is None:
                told = f"The lora adapter '{name[:MAX_NAME_CHARS]}' cannot be found"
                raise ModelNotFoundError(told, param="lora_name")
            self._left[record.generation] = record
            return record

    def to_restore(self, in_use: Collection[int]) -> Sequence[AdapterRecord]:
        """Return what a new engine must have, oldest first.

        Args:
            in_use: Generations that open requests began with.
        """
        self._left = {number: record for number, record in self._left.items() if number in in_use}
        return sorted([*self._by_name.values(), *self._left.values()], key=lambda record: record.generation)


def check_adapter_name(name: str) -> None:
    """Refuse what cannot be the name of an adapter.

    Raises:
        InvalidParameterError: It is empty, too long, has spaces, commas or control characters, or goes up in a path.
    """
    is_fine = _NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS and ".." not in name.split("/")
    if not is_fine or name.startswith("/"):
        raise InvalidParameterError(
            f"lora_name is {name[:MAX_NAME_CHARS]!r}; it must be a name of 1 to {MAX_NAME_CHARS} characters, without "
            "spaces, commas or '..'",
            param="lora_name",
        )
