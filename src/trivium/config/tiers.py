"""The options of the tiers below KV memory, as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trivium.base.errors import ConfigError
from trivium.config.sizes import parse_bytes


class DiskCache(NamedTuple):
    """Where prefixes are kept on disk, and how many bytes they may take."""

    folder: Path
    limit_bytes: int


def parse_disk_cache(text: str, *, option: str) -> DiskCache:
    """Read `PATH:SIZE`, where a size without a unit is in GiB.

    Raises:
        ConfigError: There is no path, no size, or the size is not one.
    """
    path, separator, size = text.rpartition(":")
    if not separator or not path.strip() or not size.strip():
        raise ConfigError(f"{option} is '{text}'; write PATH:GiB, such as /var/cache/trivium-kv:20, or PATH:500MiB")
    unit = "" if size.strip()[-1].isalpha() else "GiB"
    return DiskCache(Path(path).expanduser(), parse_bytes(size.strip() + unit, option=option))
