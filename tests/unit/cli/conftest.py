"""A way to run the command line in this process, and a tiny model for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import trivium as trivium
from support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights that answers at once."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
