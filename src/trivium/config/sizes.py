"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from trivium.base.errors import ConfigError

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def parse_bytes(text: str, *, option: str) -> int:
    """Turn `512MiB`, `2GB` or `1048576` into bytes; K, M and G alone are binary.

    Raises:
        ConfigError: The text is not a number with one of the known units, or not positive.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"{option} is '{text}'; write a size such as 512MiB, 2GB or 1073741824")
    num_bytes = int(float(found.group(1)) * unit)
    if num_bytes <= 0:
        raise ConfigError(f"{option} is '{text}'; it must be more than 0 bytes")
    return num_bytes


def format_bytes(num_bytes: float) -> str:
    """Write bytes with a binary unit and three digits: `1.23 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:  # noqa: PLR2004
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.2f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} TiB"
