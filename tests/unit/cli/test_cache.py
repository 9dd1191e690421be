"""`trivium cache`: what a directory of a disk cache holds is shown, and removed unless it is in use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import Run
from support.stored_pages import page_of
from trivium.tiers.disk import DiskTier

FACTS = {"model": "tiny", "kv_dtype": "bf16", "executor": "native", "arithmetic": "q4_1", "isa": "avx2"}


def fill(folder: Path, facts: dict[str, object], count: int) -> None:
    tier = DiskTier(folder, 1 << 20, facts, 200)
    for number in range(count):
        tier.put(page_of(number))
    tier.close()


def test_what_a_directory_holds_is_shown_by_model(trivium: Run, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    fill(folder, dict(FACTS), 5)
    fill(folder, {**FACTS, "kv_dtype": "f32"}, 2)
    (folder / "0000000099.kv").write_bytes(b"rubble")
    shown = trivium("cache", "show", folder)
    assert shown.code == 0
    assert [line.split("  ")[0] for line in shown.out.splitlines()] == ["model", "tiny", "tiny", "-"]
    assert "bf16, native, q4_1, avx2" in shown.out
    assert "not in use" in shown.err
    found = json.loads(trivium("cache", "show", folder, "--json").out)
    assert [model["num_pages"] for model in found["models"]] == [5, 2, 0]
    assert sum(model["num_bytes"] for model in found["models"]) == sum(
        path.stat().st_size for path in folder.glob("*.kv")
    )


def test_a_directory_in_use_is_shown_and_not_wiped(
    trivium: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivium.tiers.folder._LOCK_WAIT_S", 0.0)
    folder = tmp_path / "kv"
    tier = DiskTier(folder, 1 << 20, FACTS, 200)
    tier.put(page_of(1))
    assert "in use" in trivium("cache", "show", folder).err
    refused = trivium("cache", "wipe", folder)
    assert refused.code == 2
    assert "another process uses" in refused.err
    tier.close()
    wiped = trivium("cache", "wipe", folder)
    assert (wiped.code, wiped.out.split(",")[0]) == (0, "removed 1 files")
    assert not list(folder.glob("*.kv"))


def test_a_directory_that_is_not_there_is_an_error(trivium: Run, tmp_path: Path) -> None:
    for command in ("show", "wipe"):
        failed = trivium("cache", command, tmp_path / "nowhere")
        assert failed.code == 2
        assert "nowhere" in failed.err
