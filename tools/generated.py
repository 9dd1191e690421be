"""Files that tools write: written anew, or with --check compared with what would be written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_compare(target: Path, make: Callable[[], str], *, about: str | None, behind: str) -> int:
    """Write what `make` gives, or say that the file is behind it; returns the exit code.

    Args:
        target: The file.
        make: Makes its text.
        about: What the tool says of itself.
        behind: What the file is behind, and the tool that mends it.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    page = make()
    if not is_check:
        target.write_text(page, encoding="utf-8")
        return 0
    if target.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write(f"{target.name} is behind {behind}\n")
    return 1
