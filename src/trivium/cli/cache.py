"""`trivium cache`: what a disk cache (`--disk-cache`) holds, and how to be rid of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trivium.cli.terminal import note, table, write, write_json
from trivium.config.sizes import format_bytes

Folder = Annotated[Path, Parameter(help="The directory, as --disk-cache names it before the colon.")]
Json = Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)]


@dataclass(slots=True, kw_only=True)
class _Share:
    """What a directory holds of one model in one arithmetic."""

    model: str
    kept_as: str
    num_pages: int = 0
    num_bytes: int = 0


def show_cache(path: Folder, /, *, json: Json = False) -> int:
    """Show what a disk cache holds, by model; also while a server uses it.

    Raises:
        ConfigError: There is no such directory, or it cannot be read.
    """
    from trivium.tiers.folder import is_in_use, list_segments  # noqa: PLC0415  (start-up time)

    folder = path.expanduser()
    shares: dict[str, _Share] = {}
    for segment in list_segments(folder):
        facts = segment.facts
        share = shares.setdefault(repr(facts), _share(facts))
        share.num_pages += segment.num_pages
        share.num_bytes += segment.num_bytes
    used = is_in_use(folder)
    if json:
        listed = [{name: getattr(share, name) for name in _Share.__slots__} for share in shares.values()]
        write_json({"path": str(folder), "is_in_use": used, "models": listed})
        return 0
    rows = [(each.model, each.kept_as, str(each.num_pages), format_bytes(each.num_bytes)) for each in shares.values()]
    write(table(("model", "keys and values", "pages", "size"), rows))
    total = format_bytes(sum(share.num_bytes for share in shares.values()))
    note(f"disk cache: {folder}, {total}, {'in use' if used else 'not in use'}")
    return 0


def wipe_cache(path: Folder, /) -> int:
    """Remove every page of a disk cache that no server uses; the directory stays.

    Raises:
        ConfigError: A server uses it, it is not yours alone to write, or there is none.
    """
    from trivium.tiers.folder import wipe  # noqa: PLC0415  (start-up time)

    count, num_bytes = wipe(path.expanduser())
    write(f"removed {count} files, {format_bytes(num_bytes)}, from {path.expanduser()}")
    return 0


def _share(facts: Mapping[str, object] | None) -> _Share:
    if facts is None:
        return _Share(model="-", kept_as="damaged")
    kept = (str(facts[name]) for name in ("kv_dtype", "executor", "arithmetic", "isa") if name in facts)
    return _Share(model=str(facts.get("model", "-")), kept_as=", ".join(kept))
