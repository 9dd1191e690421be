"""`models`, `rm`, `pull`: the catalog and a cache in a temporary directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Run
from trivium.weights import hub_cache
from trivium.weights.catalog import CATALOG
from trivium.weights.store import model_file


def put(cache: Path, name: str, num_bytes: int) -> None:
    path = model_file(cache, CATALOG[name])
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(num_bytes)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of huggingface_hub of its own, empty."""
    monkeypatch.setattr(hub_cache, "hub_directory", lambda: tmp_path / "hub")
    return tmp_path / "hub"


def put_hub(hub: Path, name: str, *files: str) -> Path:
    """Lay files down as that library does: blobs, and links to them; returns the snapshot."""
    snapshot = hub / f"models--{name.replace('/', '--')}" / "snapshots" / "0123abc"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in files:
        (blobs / f"blob-of-{file}").write_bytes(b"x" * 1024)
        (snapshot / file).symlink_to(f"../../blobs/blob-of-{file}")
    return snapshot


def test_models_of_the_hub_are_listed_with_size_and_state(trivium: Run, hub: Path) -> None:
    whole = put_hub(hub, "org/whole", "config.json", "model.safetensors")
    put_hub(hub, "org/part", "config.json")
    entries = {entry["name"]: entry for entry in json.loads(trivium("models", "--json").out)}
    assert (entries["org/whole"]["state"], entries["org/whole"]["cached_bytes"]) == ("cached", 2048)
    assert entries["org/whole"]["path"] == str(whole)
    assert entries["org/part"]["state"] == "incomplete"
    outcome = trivium("models")
    assert "org/whole" in outcome.out
    assert str(hub) in outcome.err


def test_rm_removes_a_model_of_the_hub(trivium: Run, hub: Path) -> None:
    put_hub(hub, "org/name", "config.json", "model.safetensors")
    put_hub(hub, "org/other", "config.json")
    assert trivium("rm", "org/name").out == "removed org/name: 2.00 KiB freed\n"
    assert [path.name for path in hub.iterdir()] == ["models--org--other"]
    again = trivium("rm", "org/name")
    assert again.code == 1
    assert "org/other" in again.err


def test_models_lists_catalog_and_cache(trivium: Run, tmp_path: Path) -> None:
    put(tmp_path / "cache", "smollm2", CATALOG["smollm2"].num_bytes)
    put(tmp_path / "cache", "gemma3-270m", 100)
    entries = {entry["name"]: entry for entry in json.loads(trivium("models", "--json").out)}
    assert list(entries) == list(CATALOG)
    assert entries["smollm2"]["state"] == "cached"
    assert entries["smollm2"]["cached_bytes"] == CATALOG["smollm2"].num_bytes
    assert entries["gemma3-270m"]["state"] == "incomplete"
    assert "93.81 MiB" in trivium("models").out


def test_rm_frees_what_a_model_takes(trivium: Run, tmp_path: Path) -> None:
    put(tmp_path / "cache", "smollm2", 2048)
    assert trivium("rm", "smollm2").out == "removed smollm2: 2.00 KiB freed\n"
    assert not (tmp_path / "cache" / "models" / "smollm2").exists()
    assert trivium("rm", "smollm2").code == 1


def test_the_cache_directory_is_a_flag_and_a_variable(trivium: Run, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "smollm2", CATALOG["smollm2"].num_bytes)
    assert "cached" not in trivium("models").out
    assert "cached" in trivium("models", "--cache-dir", tmp_path / "elsewhere").out


def test_pull_prints_the_path_and_the_licence(trivium: Run, tmp_path: Path) -> None:
    put(tmp_path / "cache", "smollm2", CATALOG["smollm2"].num_bytes)
    outcome = trivium("pull", "smollm2", "--offline")
    assert outcome.out.strip() == str(model_file(tmp_path / "cache", CATALOG["smollm2"]))
    assert "Apache License 2.0" in outcome.err


def test_pull_offline_of_what_is_not_here_fails_and_says_so(trivium: Run) -> None:
    outcome = trivium("pull", "smollm2", "--offline")
    assert outcome.code == 1
    assert "offline" in outcome.err
    assert "downloading" not in outcome.err
