"""The cache: where it is, what is in it, what removing frees."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.base.errors import ConfigError, ModelError
from trivium.weights.catalog import CATALOG
from trivium.weights.filelock import locked
from trivium.weights.store import cache_directory, is_cached, list_cached, lock_file, model_file, remove


def put(path: Path, num_bytes: int) -> None:
    """Write a file of that size; large ones are sparse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(num_bytes)


def test_the_option_comes_before_the_variable_and_that_before_the_user_cache(tmp_path: Path) -> None:
    environ = {"TRIVIUM_CACHE_DIR": str(tmp_path / "a"), "XDG_CACHE_HOME": str(tmp_path / "b")}
    assert cache_directory(tmp_path / "c", environ) == tmp_path / "c"
    assert cache_directory(None, environ) == tmp_path / "a"
    assert cache_directory(None, {"XDG_CACHE_HOME": str(tmp_path / "b")}) == tmp_path / "b" / "trivium"
    assert cache_directory(None, {}) == Path.home() / ".cache" / "trivium"
    assert cache_directory(None, {"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "trivium"


def test_without_a_home_directory_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="set cache_dir or TRIVIUM_CACHE_DIR"):
        cache_directory(None, {})


def test_an_empty_or_absent_cache_holds_nothing(tmp_path: Path) -> None:
    assert list_cached(tmp_path) == []
    assert list_cached(tmp_path / "absent") == []


def test_models_are_listed_with_sizes_and_whether_they_are_whole(tmp_path: Path) -> None:
    model = CATALOG["smollm2"]
    put(model_file(tmp_path, model), model.num_bytes)
    put(tmp_path / "models" / "smollm2" / "LICENSE", 100)
    put(tmp_path / "partial" / "gemma3-270m" / "part.whl", 7)
    put(tmp_path / "models" / "bench" / "x.gguf", 5)
    listed = {cached.name: (cached.num_bytes, cached.is_complete) for cached in list_cached(tmp_path)}
    assert listed == {
        "bench": (5, True),
        "gemma3-270m": (7, False),
        "smollm2": (model.num_bytes + 100, True),
    }
    assert is_cached(tmp_path, model)
    assert not is_cached(tmp_path, CATALOG["gemma3-270m"])


def test_removing_frees_model_and_unfinished_download(tmp_path: Path) -> None:
    put(tmp_path / "models" / "a" / "x.gguf", 10)
    put(tmp_path / "partial" / "a" / "x.whl", 5)
    put(tmp_path / "models" / "b" / "x.gguf", 1)
    assert remove(tmp_path, "a") == 15
    assert [cached.name for cached in list_cached(tmp_path)] == ["b"]


@pytest.mark.parametrize("name", ["nope", "..", "../..", ""])
def test_removing_what_is_not_there_lists_what_is(tmp_path: Path, name: str) -> None:
    put(tmp_path / "models" / "b" / "x.gguf", 1)
    with pytest.raises(ModelError, match=r"is not in the cache .*, which holds b"):
        remove(tmp_path, name)
    assert (tmp_path / "models" / "b" / "x.gguf").exists()


def test_a_model_that_is_being_fetched_is_not_removed(tmp_path: Path) -> None:
    put(tmp_path / "models" / "a" / "x.gguf", 10)
    with locked(lock_file(tmp_path, "a")), pytest.raises(ModelError, match="another process is using this model"):
        remove(tmp_path, "a")
