"""The public surface as text: what users may rely on, one snapshot file per part under tests/repo/snapshots.

A difference is either a mistake or a change that the changelog owes its readers; `make snapshots` writes them anew.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from unittest import mock

import trivium
import trivium.lang

WIDE_TERMINAL = {"COLUMNS": "120", "LINES": "50", "TERM": "dumb", "NO_COLOR": "1"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def python_surface() -> str:
    """Every name of `trivium.__all__`."""
    return _module_surface(trivium)


def language_surface() -> str:
    """Every name of `trivium.lang.__all__`."""
    return _module_surface(trivium.lang)


def _module_surface(module: ModuleType) -> str:
    """Every public name: its signature; of classes also the public attributes and methods."""
    lines: list[str] = []
    for name in sorted(module.__all__):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            lines += ["", f"class {name}{_signature(thing)}", *(f"    {line}" for line in _members(thing))]
        elif name != "__version__":
            lines += ["", f"{name}{_signature(thing)}" if callable(thing) else f"{name}: {type(thing).__name__}"]
    return "\n".join(lines).strip() + "\n"


def _members(thing: type) -> Iterator[str]:
    for name in sorted(dir(thing)):
        if name.startswith("_") and name not in {"__enter__", "__aenter__"}:
            continue
        if issubclass(thing, BaseException) and name in vars(BaseException):  # Python's own
            continue
        member = inspect.getattr_static(thing, name)
        if isinstance(member, property):
            yield f"{name}: property"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{type(member).__name__} {name}{_signature(member.__func__)}"
        elif callable(member):
            prefix = "async " if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) else ""
            yield f"{prefix}{name}{_signature(member)}"
        else:
            yield f"{name}: field"


def _signature(thing: Callable[..., object]) -> str:
    return _ADDRESS.sub("", str(inspect.signature(thing)))


def cli_surface() -> str:
    """The whole help (`--help-all`) of the program and of every command, at a fixed width."""
    from trivium.cli.program import COMMANDS  # noqa: PLC0415  (the command line imports a terminal library)

    families = sorted({command.words[0] for command in COMMANDS if len(command.words) > 1})
    commands = [(), *((family,) for family in families), *sorted(command.words for command in COMMANDS)]
    return "\n".join(f"$ trivium {' '.join((*words, '--help-all'))}\n{_help(words)}" for words in commands)


def _help(words: tuple[str, ...]) -> str:
    from trivium.cli.program import main  # noqa: PLC0415  (as above)

    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIVIUM_")}
    text = io.StringIO()
    with mock.patch.dict(os.environ, clean | WIDE_TERMINAL, clear=True), contextlib.redirect_stdout(text):
        main([*words, "--help-all"])
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def openapi_surface() -> str:
    """The OpenAPI document of the server, keys sorted; the version number is left out."""
    from trivium.server.openapi import openapi_document  # noqa: PLC0415  (the server imports its web library)

    found = openapi_document()
    found["info"] = {**found["info"], "version": "any"}
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


SURFACES: dict[str, Callable[[], str]] = {
    "python.txt": python_surface,
    "lang.txt": language_surface,
    "cli.txt": cli_surface,
    "openapi.json": openapi_surface,
}
