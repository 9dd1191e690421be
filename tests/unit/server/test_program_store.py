"""Published programs on the disk: they survive restarts, and nothing else is believed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trivium.base.errors import ConfigError, InvalidParameterError
from trivium.program.nodes import Program, Say
from trivium.server.errors import ProgramNotFoundError
from trivium.server.program_store import MAX_VERSIONS, ProgramStore

HI, BYE = (Program(name=name, body=(Say(text=name),)) for name in ("hi", "bye"))


async def test_what_is_published_is_there_after_a_restart(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path / "programs")
    assert (await store.publish("a", HI))[1]
    assert not (await store.publish("a", HI))[1]
    await store.publish("a", BYE)
    await store.publish("b", HI)
    again = ProgramStore(tmp_path / "programs")
    assert [each.name for each in again] == ["a", "b"]
    assert [each.number for each in again.get("a").versions] == [1, 2]
    assert again.version("a", None).program == BYE
    assert again.version("a", 1).program == HI


async def test_numbers_are_not_used_again(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    for program in (HI, BYE):
        await store.publish("a", program)
    await store.delete("a", 2)
    version, _ = await ProgramStore(tmp_path).publish("a", BYE)
    assert version.number == 3
    await store.delete("a", None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProgramNotFoundError, match="no program 'a'"):
        store.get("a")


async def test_two_who_publish_at_once_get_two_versions(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    made = await asyncio.gather(store.publish("a", HI), store.publish("a", BYE))
    assert sorted(version.number for version, _ in made) == [1, 2]


async def test_the_number_of_versions_is_bounded(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path)
    for idx in range(MAX_VERSIONS):
        await store.publish("a", (HI, BYE)[idx % 2])
    with pytest.raises(InvalidParameterError, match="delete one first"):
        await store.publish("a", HI)


async def test_without_a_directory_nothing_can_be_published() -> None:
    with pytest.raises(ConfigError, match="--programs-dir"):
        await ProgramStore(None).publish("a", HI)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"name": "b", "next": 1, "versions": []}', b"\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.json holds no published program"):
        ProgramStore(tmp_path)
