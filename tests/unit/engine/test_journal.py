"""The journal says what an engine was at work on, also when it was killed in the middle of writing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trivium.engine.journal import FILE_NAME, PLACE_BYTES, Journal, LastWork, read_journal


def test_the_last_step_counts_with_all_its_choices(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note_step([("a", 0)])
    journal.note_step([("a", 0), ("b#1", 2), ("a", 3)])
    assert read_journal(tmp_path) == LastWork({"a": (0, 3), "b#1": (2,)})
    journal.note_step([])
    assert read_journal(tmp_path).request_ids == ()


def test_a_request_that_is_being_admitted_is_the_only_suspect(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note_step([("a", 0)])
    with journal.admitting("b"):
        assert read_journal(tmp_path).request_ids == ("b",)
    assert read_journal(tmp_path).request_ids == ("a",)
    with pytest.raises(ValueError, match="refused"), journal.admitting("c"):
        raise ValueError("refused")
    assert read_journal(tmp_path).request_ids == ("a",)


def test_requests_whose_constraint_is_compiled_are_suspects_beside_those_of_the_loop(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note_step([("a", 0), ("b", 0)])
    journal.note_compiling(["c", "b"])
    assert read_journal(tmp_path) == LastWork({"a": (0,), "b": (0,)}, None, ("c", "b"))
    assert read_journal(tmp_path).request_ids == ("a", "b", "c")
    with journal.admitting("d"):
        assert read_journal(tmp_path).request_ids == ("d", "c", "b")
    journal.note_compiling([])
    assert read_journal(tmp_path).request_ids == ("a", "b")


def test_another_thread_may_note_after_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.close()
    journal.note_compiling(["a"])
    journal.close()
    assert read_journal(tmp_path) == LastWork()


@pytest.mark.parametrize("num_steps", [2, 3])
@pytest.mark.parametrize("cut", [3, 12, 17, 20])
def test_a_step_that_was_not_written_to_its_end_does_not_count(tmp_path: Path, num_steps: int, cut: int) -> None:
    journal = Journal(tmp_path)
    for number in range(num_steps - 1):
        journal.note_step([(f"step {number}", 0)])
    before = (tmp_path / FILE_NAME).read_bytes()
    journal.note_step([("the last, much longer than those before", 0)])
    place = num_steps % 2 * PLACE_BYTES
    written = (tmp_path / FILE_NAME).read_bytes()[place : place + cut]
    with (tmp_path / FILE_NAME).open("r+b") as file:
        file.write(before)
        file.seek(place)
        file.write(written)
    assert read_journal(tmp_path).request_ids == (f"step {num_steps - 2}",)


def test_no_journal_names_nobody(tmp_path: Path) -> None:
    assert read_journal(tmp_path) == LastWork()
    Journal(tmp_path)
    assert read_journal(tmp_path) == LastWork()
    nowhere = Journal(tmp_path / "missing")
    nowhere.note_step([("a", 0)])
    assert read_journal(tmp_path / "missing") == LastWork()


def test_a_full_disk_gives_the_journal_up_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    journal = Journal(tmp_path)
    journal.note_step([("a", 0)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        journal.note_step([("b", 0)])
    journal.note_step([("c", 0)])
    assert read_journal(tmp_path).request_ids == ("a",)


def test_what_was_noted_is_there_when_the_process_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from trivium.engine.journal import Journal;"
        "journal = Journal(Path(sys.argv[1])); journal.note_step([('a', 1)]); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9  # noqa: S603
    assert read_journal(tmp_path) == LastWork({"a": (1,)})
