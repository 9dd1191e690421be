"""Running the command line in this process; a conftest imports the fixture `trivium` for its tests."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trivium.base import log
from trivium.cli import main


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def trivium(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Run the command with words and, optionally, text on standard input; nothing outside `tmp_path` is touched."""
    monkeypatch.setenv("TRIVIUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    logger = logging.getLogger(log.ROOT)
    handlers, level = logger.handlers[:], logger.level

    def run(*words: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    yield run
    logger.handlers[:] = handlers
    logger.setLevel(level)
