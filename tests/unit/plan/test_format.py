"""The plan file: what is written is read again, equal plans are equal files, and nothing that is wrong is believed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.small_plan import small_plan, small_stored, with_buffer, with_instruction
from trivium.base import files
from trivium.base.errors import PlanError, PlanFormatError
from trivium.plan import format as plan_format
from trivium.plan.format import StoredPlan, from_text, plan_file, read_key, read_plan, to_text, write_plan
from trivium.plan.program import PLAN_VERSION


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    stored = small_stored()
    path = write_plan(stored, tmp_path / "new" / "plan")
    assert path == tmp_path / "new" / "plan" / "plan.json"
    assert read_plan(path.parent) == stored


def test_a_plan_with_tactics_and_adapters_is_read_again(tmp_path: Path) -> None:
    tuned = with_instruction(small_plan(), 3, tactic={"kernel": "unpacked", "4": "direct"})
    both = replace(tuned, programs={**tuned.programs, "adapters": tuned.programs["base"]})
    write_plan(small_stored(plan=both), tmp_path)
    assert read_plan(tmp_path).plan == both


def test_equal_plans_are_equal_files_and_an_instruction_is_a_line() -> None:
    text = to_text(small_stored())
    assert text == to_text(small_stored())
    lines = text.splitlines()
    for op in ("embed", "attend", "gated_projection"):
        assert sum(f'"op": "{op}"' in line for line in lines) == 1
    other = to_text(small_stored(plan=with_instruction(small_plan(), 3, tactic={"kernel": "direct"})))
    changed = [line for line in other.splitlines() if line not in lines]
    assert [line.split('"')[1] for line in changed] == ["checksum", "op"]


def test_writing_replaces_the_plan_that_was_there(tmp_path: Path) -> None:
    write_plan(small_stored(), tmp_path)
    tuned = small_stored(plan=with_instruction(small_plan(), 3, tactic={"kernel": "direct"}))
    write_plan(tuned, tmp_path)
    assert read_plan(tmp_path) == tuned
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def edited(change: Callable[[dict[str, Any]], object], *, is_signed: bool = True) -> bytes:
    document = json.loads(to_text(small_stored()))
    change(document)
    if is_signed:
        document["checksum"] = plan_format._checksum(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe{", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is not a plan of Trivium"),
        (b'{"format": "something else"}', "it is not a plan of Trivium"),
        (edited(lambda d: d.update(version=PLAN_VERSION + 1)), f"it is of version {PLAN_VERSION + 1}"),
        (edited(lambda d: d["plan"].update(arena_bytes=1 << 40), is_signed=False), "its checksum is wrong"),
        (edited(lambda d: d["origin"].update(model="other"), is_signed=False), "its checksum is wrong"),
        (edited(lambda d: d["plan"].pop("limits")), "missing required field `limits`"),
        (edited(lambda d: d["plan"].update(arena_bytes="big")), "Expected `int`, got `str` - at `$.plan.arena_bytes`"),
        (edited(lambda d: d["plan"]["buffers"][4].update(kind="f64")), "`$.plan.buffers[4].kind`"),
        (edited(lambda d: d["plan"].update(weight_bytes=1)), "it has fields that no plan has"),
        (edited(lambda d: d["plan"]["weights"][0].update(scale=1)), "it has fields that no plan has"),
        (edited(lambda d: d["plan"]["buffers"][4].update(offset=32)), "offset 32 is no multiple of 64"),
    ],
)
def test_what_is_no_plan_is_refused_by_file_reason_and_way_out(tmp_path: Path, text: bytes, reason: str) -> None:
    plan_file(tmp_path).write_bytes(text)
    with pytest.raises(PlanFormatError) as refused:
        read_plan(tmp_path)
    message = str(refused.value)
    assert message.startswith(f"the plan {tmp_path / 'plan.json'} cannot be used: ")
    assert reason in message
    assert message.endswith(f"make it with: trivium compile MODEL -o {tmp_path}")


def test_the_key_alone_is_read_without_trust(tmp_path: Path) -> None:
    assert read_key(tmp_path) is None
    write_plan(small_stored(), tmp_path)
    assert read_key(tmp_path) == small_stored().key
    for text in (b"[]", b"{}", b'{"key": {"facts": 1}}', b"\xff"):
        plan_file(tmp_path).write_bytes(text)
        assert read_key(tmp_path) is None


def test_every_byte_that_is_lost_is_noticed() -> None:
    text = to_text(small_stored()).encode()
    for end in range(0, len(text) - 2, 97):
        with pytest.raises(PlanFormatError):
            from_text(text[:end], Path("plan.json"))


def test_a_directory_without_a_plan_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"there is no plan in .*plan\.json is missing.*trivium compile MODEL -o"):
        read_plan(tmp_path)


def test_a_plan_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    plan_file(tmp_path).mkdir()
    with pytest.raises(PlanError, match=r"plan\.json cannot be read"):
        read_plan(tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_leaves_the_old_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write_plan(small_stored(), tmp_path)

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", fail)
    changed = small_stored(plan=with_instruction(small_plan(), 3, tactic={"kernel": "direct"}))
    with pytest.raises(PlanError, match=f"cannot be written to {tmp_path}.*{os.strerror(code)}"):
        write_plan(changed, tmp_path)
    assert read_plan(tmp_path) == small_stored()
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_is_as_checked_as_the_one_that_is_read() -> None:
    broken: StoredPlan = small_stored(plan=with_buffer(small_plan(), "qkv", num_bytes=64))
    with pytest.raises(PlanFormatError, match="buffer qkv: 64 bytes; its rows take"):
        from_text(to_text(broken).encode(), Path("plan.json"))
