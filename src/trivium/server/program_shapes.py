"""Answers about programs: what a run came to, and what is published."""

from __future__ import annotations

from typing import Any

import msgspec

from trivium.server.shapes import Usage


class ProgramAnswer(msgspec.Struct, kw_only=True):
    """What a run came to."""

    run_id: str
    program: str
    variables: dict[str, Any]
    """Those of the program's own state, by name."""
    result: Any = None
    """What the program returns, besides its variables."""
    text: str
    """The whole text of its own state."""
    usage: Usage
    """Of all its requests together."""


class ProgramCard(msgspec.Struct, kw_only=True):
    """A version of a published program."""

    object: str = "program"
    name: str
    version: int
    versions: list[int]
    """All that there are, the newest last."""
    created: int
    """Unix time in seconds."""
    arguments: dict[str, Any]
    """JSON schema of its arguments."""
    variables: dict[str, Any]
    """JSON schema of its variables."""
    tools: list[str]
    """Tools that it may call."""
    program: dict[str, Any] | None = None
    """The program itself, where one is shown."""


class ProgramList(msgspec.Struct, kw_only=True):
    """All published programs."""

    object: str = "list"
    data: list[ProgramCard]
