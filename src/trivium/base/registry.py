"""Name to thing, with an error that lists the names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from trivium.base.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A table of named things that is filled at import time and read afterwards."""

    def __init__(self, kind: str) -> None:
        """Make an empty table.

        Args:
            kind: What the things are, in the singular, for error messages.
        """
        self._kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that enters its argument under `name`."""

        def enter(thing: T) -> T:
            if name in self._entries:
                raise ConfigError(f"{self._kind} '{name}' is registered twice")
            self._entries[name] = thing
            return thing

        return enter

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(sorted(self._entries))
            raise ConfigError(f"unknown {self._kind} '{name}'; known are: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
