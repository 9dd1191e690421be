"""Models in huggingface_hub's own cache: which are there, how to remove one. Fetching them is `weights.hub`'s.

Layout, as that library documents it (guide "Understand caching")::

    <hub>/models--<org>--<name>/blobs/<hash>                what was downloaded; <hash>.incomplete while it is
    <hub>/models--<org>--<name>/snapshots/<commit>/<file>   links to blobs, by the names they have in the repository
    <hub>/.locks/models--<org>--<name>/                     held while a file is fetched
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from trivium.base.errors import ModelError
from trivium.weights.store import CachedModel

_PREFIX = "models--"
_INDEX = "model.safetensors.index.json"


def hub_directory() -> Path | None:
    """Return where huggingface_hub keeps its cache; `None` when it is not installed."""
    try:
        from huggingface_hub import constants  # noqa: PLC0415  (an optional dependency)
    except ImportError:
        return None
    return Path(constants.HF_HUB_CACHE)


def list_hub_models(hub: Path | None) -> list[CachedModel]:
    """List the models in the hub's cache, by name (org/name); those that this engine cannot run are among them."""
    if hub is None or not hub.is_dir():
        return []
    return [_cached(path) for path in sorted(hub.glob(f"{_PREFIX}*")) if path.is_dir()]


def remove_hub_model(hub: Path | None, name: str) -> int:
    """Remove every revision of a model from the hub's cache.

    Returns:
        Bytes freed.

    Raises:
        ModelError: huggingface_hub is not installed, it holds no such model, or its cache cannot be written.
    """
    if hub is None:
        raise ModelError(
            f"'{name}' is a name on the Hugging Face hub, whose models huggingface_hub keeps; it is not installed: "
            f"pip install 'trivium[hf]', or delete the directory {_PREFIX}{name.replace('/', '--')} in its cache"
        )
    cached = {model.name: model for model in list_hub_models(hub)}
    if name not in cached:
        raise ModelError(f"'{name}' is not in the hub's cache {hub}, which holds {', '.join(cached) or 'nothing'}")
    directory = _directory(hub, name)
    try:
        shutil.rmtree(directory)
        shutil.rmtree(hub / ".locks" / directory.name, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"'{name}' cannot be removed from {hub}: {error}") from error
    return cached[name].num_bytes


def _directory(hub: Path, name: str) -> Path:
    return hub / (_PREFIX + name.replace("/", "--"))


def _cached(directory: Path) -> CachedModel:
    snapshots = sorted((directory / "snapshots").glob("*"))
    whole = [snapshot for snapshot in snapshots if _is_whole(snapshot)]
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return CachedModel(
        name=directory.name.removeprefix(_PREFIX).replace("--", "/"),
        path=whole[0] if whole else directory,
        num_bytes=sum(path.stat().st_size for path in files),
        is_complete=bool(whole),
    )


def _is_whole(snapshot: Path) -> bool:
    """Whether configuration and all weights are there; a link whose blob is missing counts as nothing."""
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / _INDEX
    if not index.is_file():
        return any(path.is_file() for path in snapshot.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return all((snapshot / str(shard)).is_file() for shard in shards)
