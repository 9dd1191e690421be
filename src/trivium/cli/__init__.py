"""Floor 10: commands, thin. Options come from the config records; everything heavy is imported inside a command."""

from __future__ import annotations

from trivium.cli.program import main

__all__ = ["main"]
