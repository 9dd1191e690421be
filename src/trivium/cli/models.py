"""`trivium pull`, `models` and `rm`: what can be had, what is here, how large it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.terminal import fetching, note, table, write, write_json
from trivium.config.options import ModelOptions
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from trivium.weights.catalog import PackagedModel
    from trivium.weights.store import CachedModel

CacheDir = Annotated[Path | None, Parameter(help="Where downloads are kept; by default ~/.cache/trivium.")]
Json = Annotated[bool, Parameter(help="Print JSON.", negative="")]


@flags_of(ModelOptions, only=("revision", "cache_dir", "offline"))
def pull(name: str, /, *, config: ConfigFile = None, **flags: Any) -> int:
    """Fetch a model, so that later starts need no network.

    Raises:
        ModelError: There is no such model, or it cannot be fetched.
    """
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415  (start-up time)

    settings = settle((ModelOptions,), flags, config=config, model=name)
    with fetching() as progress:
        found = resolve_model(settings.build(ModelOptions), progress=progress)
    if found.licence:
        note(f"{found.name} is licensed under: {found.licence}")
    write(str(found.path))
    return 0


def models(*, cache_dir: CacheDir = None, json: Json = False) -> int:
    """List the catalog, what the cache holds, and what the hub's cache holds."""
    from trivium.weights.catalog import CATALOG  # noqa: PLC0415  (start-up time)
    from trivium.weights.hub_cache import hub_directory, list_hub_models  # noqa: PLC0415
    from trivium.weights.store import cache_directory, list_cached  # noqa: PLC0415

    cache = cache_directory(_cache_dir(cache_dir))
    hub = hub_directory()
    from_hub = list_hub_models(hub)
    cached = {model.name: model for model in (*list_cached(cache), *from_hub)}
    names = (*CATALOG, *(name for name in cached if name not in CATALOG))
    entries = [_entry(name, CATALOG.get(name), cached.get(name)) for name in names]
    if json:
        write_json([asdict(entry) for entry in entries])
        return 0
    rows = [(e.name, e.state, _size(e.download_bytes), _size(e.cached_bytes), e.summary or "-") for e in entries]
    write(table(("name", "state", "download", "on disk", "summary"), rows))
    note(f"cache: {cache}")
    if from_hub:
        note(f"hub's cache: {hub}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model of the catalog, of a cache, or of both."""

    name: str
    state: str
    """`cached`, `incomplete` (a download was interrupted, or has no safetensors weights) or `not here`."""
    download_bytes: int
    cached_bytes: int
    licence: str | None
    summary: str | None
    path: str | None


def _entry(name: str, known: PackagedModel | None, held: CachedModel | None) -> Entry:
    return Entry(
        name=name,
        state="not here" if held is None else "cached" if held.is_complete else "incomplete",
        download_bytes=known.download_bytes if known else 0,
        cached_bytes=held.num_bytes if held else 0,
        licence=known.licence if known else None,
        summary=known.summary if known else None,
        path=str(held.path) if held else None,
    )


def _size(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes else "-"


def remove(name: str, /, *, cache_dir: CacheDir = None) -> int:
    """Remove a model and its unfinished downloads; org/name from the hub's cache, with all its revisions.

    Raises:
        ModelError: It is not in the cache, or in use.
    """
    from trivium.weights import hub_cache, store  # noqa: PLC0415  (start-up time)

    if "/" in name:
        freed = hub_cache.remove_hub_model(hub_cache.hub_directory(), name)
    else:
        freed = store.remove(store.cache_directory(_cache_dir(cache_dir)), name)
    write(f"removed {name}: {format_bytes(freed)} freed")
    return 0


def _cache_dir(flag: Path | None) -> Path | None:
    flags = {} if flag is None else {"cache_dir": str(flag)}
    value: Path | None = settle((ModelOptions,), flags)["cache_dir"]
    return value
