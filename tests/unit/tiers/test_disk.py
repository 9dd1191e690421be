"""The disk tier: what is put comes back bit for bit or not at all, whatever happens to the files."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stored_pages import CONTENT_BYTES, FACTS, PAGE_LEN, content_of, facts_of, page_of
from trivium.base.errors import ConfigError
from trivium.tiers import segment
from trivium.tiers.disk import DiskTier
from trivium.tiers.folder import is_in_use, list_segments, wipe
from trivium.tiers.page import PageFacts, StoredPage

PAGE_BYTES = CONTENT_BYTES + 4 * PAGE_LEN
RECORD = segment.RECORD_BYTES + PAGE_BYTES
HEAD = len(segment.make_head(FACTS))


def open_tier(folder: Path, *, pages: int = 64, facts: dict[str, object] | None = None) -> DiskTier:
    """A tier with room for about `pages` pages."""
    return DiskTier(folder, pages * (RECORD + HEAD), facts or dict(FACTS), PAGE_BYTES)


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"))


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_of(folder))


def found(tier: DiskTier, numbers: range) -> list[int]:
    """The pages that come back; each must be what was put."""
    back = {number: tier.get(facts_of(number)) for number in numbers}
    for number, content in back.items():
        assert content is None or content == content_of(number)
    return [number for number, content in back.items() if content is not None]


def test_pages_come_back_and_outlive_a_restart(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    for number in range(20):
        tier.put(page_of(number))
        tier.put(page_of(number, group=1))
    assert found(tier, range(25)) == list(range(20))
    tier.close()
    again = open_tier(tmp_path / "kv")
    assert again.get(facts_of(3, group=1)) == content_of(3, group=1)
    assert again.get(facts_of(3, group=2)) is None
    assert found(again, range(25)) == list(range(20))
    assert again.where(facts_of(3).ref) == "disk"
    assert again.where(facts_of(33).ref) is None
    again.close()


def test_a_page_is_only_given_for_its_own_tokens_parent_and_place(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))
    mine = facts_of(1)
    for wrong in (
        PageFacts(mine.ref, mine.parent, mine.index, facts_of(2).tokens),
        PageFacts(mine.ref, mine.ref.key, mine.index, mine.tokens),
        PageFacts(mine.ref, mine.parent, 1, mine.tokens),
    ):
        tier.put(page_of(1))
        assert tier.get(wrong) is None
    tier.close()


def test_files_and_directory_are_for_their_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        tier = open_tier(tmp_path / "kv")
        tier.put(page_of(1))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kv").iterdir()} == {0o600}
    tier.close()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(mode)
    with pytest.raises(ConfigError, match=r"others can write .*chmod 700"):
        open_tier(tmp_path / "kv")


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kv").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="and this process is user 12345"):
        open_tier(tmp_path / "kv")


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_tier(tmp_path / "kv")


def test_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.tiers.folder._LOCK_WAIT_S", 0.0)
    tier = open_tier(tmp_path / "kv")
    assert is_in_use(tmp_path / "kv")
    with pytest.raises(ConfigError, match="another process uses"):
        open_tier(tmp_path / "kv")
    with pytest.raises(ConfigError, match="another process uses"):
        wipe(tmp_path / "kv")
    tier.close()
    assert not is_in_use(tmp_path / "kv")
    open_tier(tmp_path / "kv").close()


def test_too_small_a_bound_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 3 KV pages of 116 B; give room for 16 or more"):
        open_tier(tmp_path / "kv", pages=3)


def test_the_bound_holds_and_what_was_used_stays(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv", pages=64)
    limit = tier.stats()["disk"].limit_bytes
    for number in range(400):
        tier.put(page_of(number))
        assert bytes_of(tmp_path / "kv") == tier.stats()["disk"].num_bytes <= limit
        assert tier.get(facts_of(0)) == content_of(0), f"used all the time, and gone after {number}"
    left = found(tier, range(400))
    assert left[1:] == list(range(400 - len(left) + 1, 400)), "the oldest unused ones went"
    assert len(left) > 32
    assert tier.stats()["disk"].num_evicted == 400 - len(left)
    tier.close()


def test_a_smaller_bound_at_the_next_start_holds_at_once(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv", pages=64)
    for number in range(60):
        tier.put(page_of(number))
    tier.close()
    again = open_tier(tmp_path / "kv", pages=20)
    assert bytes_of(tmp_path / "kv") <= again.stats()["disk"].limit_bytes
    left = found(again, range(60))
    assert left
    assert left == list(range(60 - len(left), 60))
    again.close()


def test_foreign_segments_are_never_read_and_go_first(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    for number in range(20):
        tier.put(page_of(number))
    tier.close()
    other = open_tier(tmp_path / "kv", facts={**FACTS, "kv": "bf16"})
    assert found(other, range(20)) == []
    for number in range(100, 150):
        other.put(page_of(number))
    assert found(other, range(100, 150)) == list(range(100, 150)), "nothing of ours went before the foreign ones"
    other.close()


def test_a_switch_of_models_and_back_loses_nothing_while_there_is_room(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))
    tier.close()
    open_tier(tmp_path / "kv", facts={**FACTS, "kv": "bf16"}).close()
    again = open_tier(tmp_path / "kv")
    assert found(again, range(3)) == [1]
    again.close()


def test_a_crash_at_any_byte_of_a_write_leaves_what_was_whole(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    for number in range(3):
        tier.put(page_of(number))
    tier.close()
    (path,) = files_of(tmp_path / "kv")
    whole = path.read_bytes()
    ends = [HEAD + RECORD * count for count in range(4)]
    assert len(whole) == ends[-1]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        again = open_tier(tmp_path / "kv")
        count = sum(end <= size for end in ends[1:])
        assert found(again, range(4)) == list(range(count)), f"cut off after {size} bytes"
        assert again.stats()["disk"].num_damaged == int(size not in ends)
        again.put(page_of(7))
        assert found(again, range(6, 9)) == [7]
        again.close()
        for later in files_of(tmp_path / "kv"):
            if later != path:
                later.unlink()


def test_every_single_damaged_byte_is_noticed(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    for number in range(2):
        tier.put(page_of(number))
    tier.close()
    (path,) = files_of(tmp_path / "kv")
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 + at % 255)]) + whole[at + 1 :])
        again = open_tier(tmp_path / "kv")
        left = found(again, range(2))
        assert left == ([] if at < HEAD + segment.RECORD_BYTES else [0] if at >= HEAD + RECORD else [1])
        assert again.stats()["disk"].num_damaged >= 1
        again.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_damage_while_it_is_in_use_gives_no_wrong_page(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage") / "kv"
    tier = open_tier(folder, pages=32)
    for number in range(20):
        tier.put(page_of(number))
    for path in files_of(folder):
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 6))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
    before = found(tier, range(20))
    assert found(tier, range(20)) == before
    for number in range(20, 60):
        tier.put(page_of(number))
    found(tier, range(60))
    tier.close()
    shutil.rmtree(folder)


def test_a_full_disk_switches_the_tier_off_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with caplog.at_level(logging.ERROR):
        for number in range(2, 6):
            tier.put(page_of(number))
    assert [record.message for record in caplog.records] == [
        f"disk cache off until the next start: writing to {tmp_path / 'kv'} failed: No space left on device"
    ]
    assert tier.stats()["disk"].is_off
    assert tier.get(facts_of(1)) is None
    assert tier.where(facts_of(1).ref) is None
    monkeypatch.undo()
    tier.put(page_of(9))
    assert tier.get(facts_of(9)) is None
    tier.close()
    again = open_tier(tmp_path / "kv")
    assert found(again, range(10)) == [1]
    again.close()


def test_a_write_that_takes_few_bytes_at_a_time_is_still_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, offset: whole(file, [parts[0][:7]], offset))
    tier = open_tier(tmp_path / "kv")
    for number in range(5):
        tier.put(page_of(number))
    assert found(tier, range(5)) == list(range(5))
    tier.close()


def test_a_file_that_went_away_switches_the_tier_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))
    files_of(tmp_path / "kv")[0].unlink()
    assert tier.get(facts_of(1)) is None
    assert tier.stats()["disk"].is_off
    assert "reading from" in caplog.text
    tier.close()


def test_links_in_the_directory_are_not_followed(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))
    tier.close()
    path = files_of(tmp_path / "kv")[0]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    again = open_tier(tmp_path / "kv")
    assert found(again, range(3)) == []
    again.put(page_of(2))
    again.clear()
    assert (tmp_path / "elsewhere").exists()
    again.close()


def test_clearing_and_wiping_remove_every_segment(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(page_of(1))
    tier.clear()
    assert files_of(tmp_path / "kv") == []
    assert (found(tier, range(3)), tier.stats()["disk"].num_bytes) == ([], 0)
    tier.put(page_of(2))
    assert found(tier, range(3)) == [2]
    tier.close()
    (segment_file,) = list_segments(tmp_path / "kv")
    assert (segment_file.facts, segment_file.num_pages) == (dict(FACTS), 1)
    assert wipe(tmp_path / "kv") == (1, HEAD + RECORD)
    assert files_of(tmp_path / "kv") == []
    with pytest.raises(ConfigError, match="there is no directory"):
        wipe(tmp_path / "nowhere")


def test_an_empty_page_is_a_page(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv")
    tier.put(StoredPage(facts_of(1), b""))
    assert tier.get(facts_of(1)) == b""
    tier.close()
