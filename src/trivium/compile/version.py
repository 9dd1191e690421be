"""What compiles plans, as one number: a plan made by other passes is not used."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_PACKAGES = ("compile", "ir", "models")
"""Whose text decides what a plan is: definitions, the meaning of graphs, passes."""
_NO_PART = ("compile/tuner",)


@cache
def compiler_version() -> str:
    """Return a digest of the sources that plans are made by: 16 hexadecimal digits. Takes a few milliseconds."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=8)
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(_NO_PART):
                digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
