"""The hub's cache as huggingface_hub lays it out: what counts as whole, what is freed, what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trivium.base.errors import ModelError
from trivium.weights.hub_cache import hub_directory, list_hub_models, remove_hub_model


def put(hub: Path, name: str, files: dict[str, str]) -> Path:
    """Lay files down as links to blobs, and return the model's directory."""
    directory = hub / f"models--{name.replace('/', '--')}"
    snapshot = directory / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (directory / "blobs").mkdir()
    for file, text in files.items():
        (directory / "blobs" / file).write_text(text)
        (snapshot / file).symlink_to(f"../../blobs/{file}")
    return directory


def test_a_sharded_model_is_whole_when_every_shard_is_there(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    files = {"config.json": "{}", "model.safetensors.index.json": index, "1.safetensors": "x", "2.safetensors": "x"}
    directory = put(tmp_path, "org/name", files)
    [model] = list_hub_models(tmp_path)
    assert (model.name, model.is_complete, model.path.name) == ("org/name", True, "0123abc")
    (directory / "blobs" / "2.safetensors").unlink()
    [model] = list_hub_models(tmp_path)
    assert (model.is_complete, model.path) == (False, directory)
    (directory / "blobs" / "model.safetensors.index.json").write_text("[]")
    assert not list_hub_models(tmp_path)[0].is_complete


def test_a_download_that_was_interrupted_at_once_is_listed_and_removable(tmp_path: Path) -> None:
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.incomplete").write_bytes(b"x" * 100)
    locks = tmp_path / ".locks" / "models--org--name"
    locks.mkdir(parents=True)
    [model] = list_hub_models(tmp_path)
    assert (model.num_bytes, model.is_complete) == (100, False)
    assert remove_hub_model(tmp_path, "org/name") == 100
    assert not locks.exists()
    assert list_hub_models(tmp_path) == []


@pytest.mark.parametrize("name", ["org/other", "../../x", "org/name/..", "datasets/x", "/"])
def test_what_is_not_there_is_refused_and_nothing_touched(tmp_path: Path, name: str) -> None:
    directory = put(tmp_path, "org/name", {"config.json": "{}"})
    (tmp_path / "datasets--a--b").mkdir()
    with pytest.raises(ModelError, match="which holds org/name"):
        remove_hub_model(tmp_path, name)
    assert directory.is_dir()


def test_without_the_library_nothing_is_listed_and_rm_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub_directory() is None
    assert list_hub_models(None) == []
    with pytest.raises(ModelError, match="delete the directory models--org--name"):
        remove_hub_model(None, "org/name")


def test_a_cache_that_was_never_made_is_empty(tmp_path: Path) -> None:
    assert list_hub_models(tmp_path / "nothing") == []
