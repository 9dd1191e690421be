"""Packed weights: written once, mapped afterwards; what goes wrong on a disk costs time, never a wrong weight."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.row_packer import RowPacker, Source, unpacked
from trivium.base.errors import CheckpointError, InternalError, ModelError
from trivium.base.files import TEMPORARY
from trivium.runtime import packed_build, packed_file
from trivium.runtime.packed import PackedCache, PackedSpec, PackedWeights
from trivium.weights.filelock import locked
from trivium.weights.kinds import Codes

WANTED = (
    PackedSpec(name="embed", format="i8_g32", num_cols=100, depth=64),
    PackedSpec(name="down", format="i4m_g32", num_cols=32, depth=96),
    PackedSpec(name="head", format="bf16", num_cols=65, depth=40),
    PackedSpec(name="up", format="f32", num_cols=1, depth=7),
)
FINGERPRINT = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one panel, so that a tensor has several; chunks that pieces do not fit."""
    monkeypatch.setattr(packed_file, "_PIECE_VALUES", 1)
    monkeypatch.setattr(packed_build, "_CHUNK_BYTES", 1000)


def open_weights(
    cache: Path, source: Callable[[PackedSpec, int, int], Codes] | None = None, packer: RowPacker | None = None
) -> PackedWeights:
    return PackedCache(cache).open("model", FINGERPRINT, WANTED, packer or RowPacker(), source or Source(WANTED))


def path_in(cache: Path) -> Path:
    return PackedCache(cache).path(FINGERPRINT, WANTED, RowPacker())


def assert_right(weights: PackedWeights) -> None:
    source = Source(WANTED)
    assert list(weights.matrices) == [spec.name for spec in WANTED]
    for spec in WANTED:
        matrix = weights.matrices[spec.name]
        assert (matrix.format, matrix.num_cols, matrix.depth) == (spec.format, spec.num_cols, spec.depth)
        assert matrix.panels.ctypes.data % 64 == 0
        assert not matrix.panels.flags.writeable
        expected = source(spec, 0, spec.num_cols)
        for name, array in unpacked(matrix.panels, spec).arrays.items():
            np.testing.assert_array_equal(array, expected.arrays[name], err_msg=f"{spec.name} {name}")
    assert weights.num_bytes == sum(matrix.panels.nbytes for matrix in weights.matrices.values())


def assert_nothing_unfinished(cache: Path) -> None:
    assert not list(cache.rglob(f"*{TEMPORARY}"))


def test_the_first_start_packs_and_the_second_maps(tmp_path: Path) -> None:
    source = Source(WANTED)
    first = open_weights(tmp_path, source)
    assert first.path == path_in(tmp_path)
    assert first.build_seconds > 0
    assert source.num_rows == sum(spec.num_cols for spec in WANTED)
    assert_right(first)
    second = open_weights(tmp_path, source)
    assert second.build_seconds == 0
    assert second.path == first.path
    assert source.num_rows == sum(spec.num_cols for spec in WANTED)
    assert_right(second)
    assert_nothing_unfinished(tmp_path)


def test_progress_rises_to_the_end_and_is_silent_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    cache = PackedCache(tmp_path)
    for _ in range(2):
        weights = cache.open(
            "model", FINGERPRINT, WANTED, RowPacker(), Source(WANTED), report=lambda *news: seen.append(news)
        )
    assert {total for _, total in seen} == {weights.num_bytes}
    done = [done for done, _ in seen]
    assert done == sorted(set(done))
    assert done[-1] == weights.num_bytes
    assert len(done) == 4 + 1 + 3 + 1


@pytest.mark.parametrize(
    ("fingerprint", "wanted", "layout"),
    [
        ("f" * 64, WANTED, "rows-1"),
        (FINGERPRINT, WANTED[:2], "rows-1"),
        (FINGERPRINT, WANTED[::-1], "rows-1"),
        (FINGERPRINT, WANTED, "rows-2"),
        (FINGERPRINT, (PackedSpec(name="embed", format="bf16", num_cols=100, depth=64), *WANTED[1:]), "rows-1"),
    ],
    ids=["checkpoint", "fewer", "order", "layout", "format"],
)
def test_other_weights_have_files_of_their_own(
    tmp_path: Path, fingerprint: str, wanted: tuple[PackedSpec, ...], layout: str
) -> None:
    open_weights(tmp_path)
    other = PackedCache(tmp_path).open("other", fingerprint, wanted, RowPacker(layout), Source(wanted))
    assert other.build_seconds > 0
    assert len(list((tmp_path / "packed").iterdir())) == 2
    assert open_weights(tmp_path).build_seconds == 0


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(at: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)

    return change


def of_another_checkpoint(path: Path) -> None:
    other = PackedCache(path.parents[1]).open("x", "9" * 64, WANTED, RowPacker(), Source(WANTED))
    assert other.path is not None
    other.path.replace(path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "bytes, and should have"),
        (lengthen, "bytes, and should have"),
        (lambda path: path.write_bytes(b""), "it has 0 bytes"),
        (flip(0), "not a file of packed weights"),
        (flip(8), "it is of version 0, and this is version 1"),
        (flip(12), "checksum of its header is wrong"),
        (flip(16), "checksum of its header is wrong"),
        (flip(40), "checksum of its header is wrong"),
        (of_another_checkpoint, "it holds other weights"),
    ],
)
def test_a_file_that_cannot_be_used_is_packed_anew_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], reason: str
) -> None:
    open_weights(tmp_path)
    damage(path_in(tmp_path))
    caplog.clear()
    weights = open_weights(tmp_path)
    assert weights.build_seconds > 0
    assert_right(weights)
    (line,) = caplog.messages
    assert "packing weights anew" in line
    assert str(path_in(tmp_path)) in line
    assert reason in line
    assert open_weights(tmp_path).build_seconds == 0


def test_starting_reads_no_tensor_and_verifying_reads_all(tmp_path: Path) -> None:
    weights = open_weights(tmp_path)
    assert weights.path is not None
    assert packed_file.damage_of(weights.path) == []
    header = packed_file.read_header(weights.path)
    head = header.tensors[2]
    flip(head.offset + head.piece_bytes + 5)(weights.path)
    flip(header.tensors[3].offset)(weights.path)
    assert open_weights(tmp_path).build_seconds == 0
    seen: list[tuple[int, int]] = []
    assert packed_file.damage_of(weights.path, lambda *news: seen.append(news)) == [
        "head: rows 32 to 64 are not what was written",
        "up: rows 0 to 1 are not what was written",
    ]
    assert seen[-1] == (weights.num_bytes, weights.num_bytes)
    truncate(weights.path)
    (problem,) = packed_file.damage_of(weights.path)
    assert "should have" in problem


def failing(name: str, code: int, *, after: int = 0) -> Callable[[pytest.MonkeyPatch], None]:
    """Make a function of `os` fail with an error of the system's after some calls."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(os, name), []

        def fail(*args: object, **options: object) -> object:
            if str(args[0]).endswith(".lock"):
                return real(*args, **options)
            calls.append(args)
            if len(calls) > after:
                raise OSError(code, os.strerror(code))
            return real(*args, **options)

        monkeypatch.setattr(packed_build.os, name, fail)

    return patch


@pytest.mark.parametrize(
    "trouble",
    [
        failing("posix_fallocate", errno.ENOSPC),
        failing("pwrite", errno.ENOSPC, after=3),
        failing("pwrite", errno.EDQUOT, after=9),
        failing("fsync", errno.EIO),
        failing("open", errno.EROFS),
    ],
    ids=["full before", "full while packing", "quota at the end", "flush", "read-only"],
)
def test_a_disk_that_cannot_be_written_costs_packing_at_every_start_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        trouble(patched)
        weights = open_weights(tmp_path)
    assert weights.path is None
    assert weights.build_seconds > 0
    assert_right(weights)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert str(path_in(tmp_path)) in line
    assert "KiB" in line
    assert_nothing_unfinished(tmp_path)
    assert not path_in(tmp_path).exists()
    assert open_weights(tmp_path).path == path_in(tmp_path)


def test_a_file_system_that_cannot_promise_space_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("posix_fallocate", errno.EOPNOTSUPP)(monkeypatch)
    assert_right(open_weights(tmp_path))
    assert open_weights(tmp_path).build_seconds == 0


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_the_system_forgets_what_was_written_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    flush, advise = os.fsync, os.posix_fadvise
    monkeypatch.setattr(packed_build.os, "fsync", lambda file: (called.append("flush"), flush(file))[1])
    monkeypatch.setattr(
        packed_build.os,
        "posix_fadvise",
        lambda *words: (
            called.append("forget" if words[1:] == (0, 0, os.POSIX_FADV_DONTNEED) else "?"),
            advise(*words),
        )[1],
    )
    assert_right(open_weights(tmp_path))
    assert called[:2] == ["flush", "forget"]


def test_a_cache_that_cannot_be_made_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    weights = open_weights(tmp_path / "file" / "cache")
    assert weights.path is None
    assert_right(weights)
    (line,) = caplog.messages
    assert "cannot be written: Not a directory" in line
    assert "TRIVIUM_CACHE_DIR" in line


def test_a_read_only_cache_is_used_as_far_as_it_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_weights(tmp_path)
    (tmp_path / "locks").rename(tmp_path / "kept")
    (tmp_path / "locks").write_bytes(b"")  # no lock can be made; nor could root be kept from it by permissions
    assert open_weights(tmp_path).build_seconds == 0
    assert not caplog.messages
    weights = open_weights(tmp_path, packer=RowPacker("rows-2"))
    assert weights.path is None
    assert len(caplog.messages) == 1


def test_what_is_wrong_with_the_checkpoint_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    source = Source(WANTED)

    def broken(spec: PackedSpec, start: int, end: int) -> Codes:
        if spec.name == "head":
            raise CheckpointError("parameter head holds values that are not finite")
        return source(spec, start, end)

    with pytest.raises(CheckpointError, match="parameter head"):
        open_weights(tmp_path, broken)
    assert_nothing_unfinished(tmp_path)
    assert not path_in(tmp_path).exists()
    assert_right(open_weights(tmp_path))


def test_an_error_of_the_checkpoints_disk_is_not_taken_for_one_of_the_caches(tmp_path: Path) -> None:
    def unreadable(spec: PackedSpec, start: int, end: int) -> Codes:
        raise OSError(errno.EIO, "the model's disk")

    with pytest.raises(OSError, match="the model's disk"):
        open_weights(tmp_path, unreadable)
    assert_nothing_unfinished(tmp_path)


def test_a_record_of_another_shape_is_our_fault(tmp_path: Path) -> None:
    source = Source(WANTED)
    with pytest.raises(InternalError, match=r"embed: .* were made of rows"):
        open_weights(tmp_path, lambda spec, start, end: source(spec, start, max(start + 1, end - 1)))
    with pytest.raises(InternalError, match="names of their own"):
        PackedCache(tmp_path).open("m", FINGERPRINT, WANTED[:1] * 2, RowPacker(), source)


PROCESS = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.row_packer import RowPacker, Source
from trivium.runtime.packed import PackedCache, PackedSpec

wanted = [PackedSpec(name="w", format="i8_g32", num_cols=64, depth=32)]
source = Source(wanted)

def slow(spec, start, end):
    time.sleep(0.5)
    return source(spec, start, end)

while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
weights = PackedCache(Path(sys.argv[1])).open("m", "a" * 64, wanted, RowPacker(), slow)
print(weights.build_seconds > 0, weights.path.name, weights.matrices["w"].panels.tobytes().hex()[:64])
"""


def test_of_processes_that_start_at_once_one_packs_and_the_others_wait(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "cache"), str(tmp_path / "go"), "tests"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]  # noqa: S603 - ours
    (tmp_path / "go").write_bytes(b"")
    answers = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(answer[0] for answer in answers) == ["False", "False", "True"]
    assert len({tuple(answer[1:]) for answer in answers}) == 1


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.row_packer import RowPacker, Source
from trivium.runtime.packed import PackedCache, PackedSpec

resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
wanted = [PackedSpec(name="w", format="f32", num_cols=64, depth=64)]
weights = PackedCache(Path(sys.argv[1])).open("m", "a" * 64, wanted, RowPacker(), Source(wanted))
print(weights.path, weights.num_bytes)
"""


def test_a_limit_on_the_size_of_files_is_met_by_a_real_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path), "tests"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - ours
    assert run.stdout.split() == ["None", str(64 * 64 * 4)]
    assert "cannot be written: File too large" in run.stderr
    assert [path.name for path in (tmp_path / "packed").iterdir()] == []


def test_what_a_writer_that_died_left_is_cleared(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.parent.mkdir()
    dead = path.with_name(f"{path.name}.123-abc{TEMPORARY}")
    dead.write_bytes(b"x" * 1000)
    (entry,) = PackedCache(tmp_path).entries()
    assert (entry.header, entry.num_bytes) == (None, 1000)
    open_weights(tmp_path)
    assert not dead.exists()


def test_files_are_listed_and_pruned_by_use_and_by_layout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = PackedCache(tmp_path)
    assert cache.entries() == []
    kept = open_weights(tmp_path)
    foreign = open_weights(tmp_path, packer=RowPacker("rows-0"))
    old = cache.open("old", "1" * 64, WANTED, RowPacker(), Source(WANTED))
    damaged = cache.open("damaged", "2" * 64, WANTED, RowPacker(), Source(WANTED))
    busy = cache.open("busy", "3" * 64, WANTED, RowPacker("rows-0"), Source(WANTED))
    assert kept.path
    assert foreign.path
    assert old.path
    assert damaged.path
    assert busy.path
    truncate(damaged.path)
    os.utime(old.path, (time.time() - 40 * 86400,) * 2)
    entries = {entry.path: entry for entry in cache.entries()}
    assert len(entries) == 5
    assert entries[kept.path].is_foreign("rows-1") is None
    assert entries[foreign.path].is_foreign("rows-1") == "other kernels"
    assert entries[damaged.path].is_foreign("rows-1") == "unusable"
    assert "should have" in entries[damaged.path].problem
    assert 39 < entries[old.path].age_days < 41
    header = entries[kept.path].header
    assert header is not None
    assert (header.model, header.fingerprint) == ("model", FINGERPRINT)
    assert entries[kept.path].num_bytes == kept.path.stat().st_size
    with locked(tmp_path / "locks" / f"packed-{busy.path.stem}.lock"):
        with pytest.raises(ModelError, match="another process"):
            cache.remove(entries[busy.path])
        removed = cache.prune("rows-1", unused_days=30)
    assert {entry.path for entry in removed} == {foreign.path, old.path, damaged.path}
    assert {entry.path for entry in cache.entries()} == {kept.path, busy.path}
    assert len(caplog.messages) == 1
    assert_right(old)  # still mapped


def test_using_a_file_makes_it_young(tmp_path: Path) -> None:
    path = open_weights(tmp_path).path
    assert path is not None
    os.utime(path, (time.time() - 40 * 86400,) * 2)
    open_weights(tmp_path)
    assert PackedCache(tmp_path).prune("rows-1", unused_days=30) == []
