"""Published programs: by name and version, each name a file of its own.

::

    DIRECTORY/summarise.json
    {"name": "summarise", "next": 3, "versions": [{"version": 2, "created": ..., "program": {...}}]}

Files are written whole or not at all, readable by their owner only, and read once, when the server starts.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.base.errors import ConfigError, InvalidParameterError, TriviumError, ensure
from trivium.base.files import write_atomically
from trivium.program.codec import from_document, to_document
from trivium.program.nodes import Program
from trivium.server.errors import ProgramNotFoundError

MAX_NAMES, MAX_VERSIONS = 1000, 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MODE, _FOLDER_MODE = 0o600, 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a published program."""

    number: int
    created: int
    """Unix time in seconds."""
    program: Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All versions of a name, the newest last."""

    name: str
    next_number: int
    versions: tuple[Version, ...]

    @property
    def newest(self) -> Version:
        """The version that runs when none is named."""
        return self.versions[-1]


class ProgramStore:
    """The published programs of one server; changed from one event loop.

    Invariants:
        What is known is on the disk; a name without versions is not known.
    """

    def __init__(self, directory: Path | None) -> None:
        """Read what was published.

        Args:
            directory: Made where it is missing; `None` is a store in which nothing can be published.

        Raises:
            ConfigError: The directory or a file in it cannot be read, or holds no program.
        """
        self._directory = directory
        self._writing = asyncio.Lock()
        self._known: dict[str, Published] = {}
        if directory is None:
            return
        try:
            directory.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            files = sorted(directory.glob("*.json"))
        except OSError as error:
            raise ConfigError(f"programs_dir {directory} cannot be used: {error}") from error
        for file in files:
            published = _read(file)
            self._known[published.name] = published

    def __iter__(self) -> Iterator[Published]:
        """Go through the names, in order."""
        return iter(sorted(self._known.values(), key=lambda each: each.name))

    def get(self, name: str) -> Published:
        """Return all versions of a name.

        Raises:
            ProgramNotFoundError: There is none.
        """
        published = self._known.get(name)
        if published is None:
            raise ProgramNotFoundError(f"no program '{name[:64]}' is published; GET /v1/programs lists them")
        return published

    def version(self, name: str, number: int | None) -> Version:
        """Return a version of a name, the newest where none is asked for.

        Raises:
            ProgramNotFoundError: There is none.
        """
        published = self.get(name)
        if number is None:
            return published.newest
        found = next((each for each in published.versions if each.number == number), None)
        if found is None:
            known = ", ".join(str(each.number) for each in published.versions)
            raise ProgramNotFoundError(f"program '{name}' has no version {number}; versions are {known}")
        return found

    async def publish(self, name: str, program: Program) -> tuple[Version, bool]:
        """Add a version; the newest stays it, where it is the same program. Returns it, and whether it is new.

        Raises:
            InvalidParameterError: The name is none, or there are too many names or versions.
            ConfigError: There is no directory, or it cannot be written.
        """
        _check_name(name)
        async with self._writing:
            known = self._known.get(name)
            if known is not None and known.newest.program == program:
                return known.newest, False
            if known is None and len(self._known) >= MAX_NAMES:
                raise InvalidParameterError(f"{MAX_NAMES} programs are published; delete one first", param="name")
            versions = () if known is None else known.versions
            if len(versions) >= MAX_VERSIONS:
                raise InvalidParameterError(
                    f"program '{name}' has {MAX_VERSIONS} versions; delete one first (?version=N)", param="name"
                )
            number = 1 if known is None else known.next_number
            version = Version(number=number, created=int(time.time()), program=program)
            await self._write(Published(name=name, next_number=number + 1, versions=(*versions, version)))
            return version, True

    async def delete(self, name: str, number: int | None) -> None:
        """Remove a version, or all of a name.

        Raises:
            ProgramNotFoundError: There is none.
            ConfigError: The directory cannot be written.
        """
        async with self._writing:
            self.version(name, number)
            published = self.get(name)
            left = tuple(each for each in published.versions if number is not None and each.number != number)
            if left:
                await self._write(Published(name=name, next_number=published.next_number, versions=left))
                return
            try:
                await asyncio.to_thread(self._path(name).unlink)
            except OSError as error:
                raise ConfigError(f"program '{name}' cannot be deleted: {error}") from error
            del self._known[name]

    async def _write(self, published: Published) -> None:
        try:
            await asyncio.to_thread(write_atomically, self._path(published.name), _document(published), mode=_MODE)
        except OSError as error:
            raise ConfigError(f"program '{published.name}' cannot be stored: {error}") from error
        self._known[published.name] = published

    def _path(self, name: str) -> Path:
        if self._directory is None:
            raise ConfigError("programs cannot be published here; start the server with --programs-dir DIRECTORY")
        return self._directory / f"{name}.json"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidParameterError(
            f"name is {name[:64]!r}; it must be 1 to 64 letters, digits, '-' or '_', and begin with a letter or digit",
            param="name",
        )


def _document(published: Published) -> bytes:
    versions = [
        {"version": each.number, "created": each.created, "program": to_document(each.program)}
        for each in published.versions
    ]
    whole = {"name": published.name, "next": published.next_number, "versions": versions}
    return json.dumps(whole, ensure_ascii=False).encode()


def _read(file: Path) -> Published:
    try:
        whole: Mapping[str, Any] = json.loads(file.read_bytes())
        versions = tuple(
            Version(number=int(each["version"]), created=int(each["created"]), program=from_document(each["program"]))
            for each in whole["versions"]
        )
        name = str(whole["name"])
        _check_name(name)
        published = Published(name=name, next_number=int(whole["next"]), versions=versions)
        ensure(bool(versions) and f"{name}.json" == file.name, "it has no version, or another name")
    except (OSError, ValueError, LookupError, TypeError, TriviumError) as error:
        raise ConfigError(
            f"{file} holds no published program ({error!r}); repair it, or move it out of programs_dir"
        ) from error
    return published
