"""Print the requirements of named parts of pyproject.toml, one per line, for `pip install -r /dev/stdin`.

A part is `build` (what building needs), `core` (what running needs), or the name of an extra.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(parts: list[str]) -> list[str]:
    """Return the requirement lines of `parts`, in order; an unknown part is a `KeyError` that names it."""
    table = tomllib.loads(PROJECT.read_text())
    known = {
        "build": table["build-system"]["requires"],
        "core": table["project"]["dependencies"],
        **table["project"]["optional-dependencies"],
    }
    return [line for part in parts for line in known[part]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
