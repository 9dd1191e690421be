"""A way to run the command line in this process, and a tiny model for it."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Outcome, Run
from support.tiny_model import write_tiny_model
from trivium.base import log
from trivium.cli import main


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


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights that answers at once."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
