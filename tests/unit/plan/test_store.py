"""The automatic cache: a plan is compiled once and found again, and a bad disk costs time, not answers."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.small_plan import LIMITS, small_key, small_plan, small_stored
from trivium.base import files
from trivium.base.errors import PlanError, PlanMismatchError
from trivium.plan import store
from trivium.plan.format import Origin, plan_file, read_plan, write_plan
from trivium.plan.machine import Machine
from trivium.plan.program import Plan
from trivium.plan.store import PlanCache, open_named_plan
from trivium.weights.filelock import locked

ORIGIN = small_stored().origin
MACHINE = Machine(processor=ORIGIN.processor, isa="avx2", threads=2, kernels="k1", compiler="GNU")


@pytest.fixture(autouse=True)
def every_warning_is_the_first() -> Iterator[None]:
    yield
    store._warned.clear()


class Compiler:
    """Builds the small plan, and counts how often."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> Plan:
        self.runs += 1
        return small_plan()


def test_a_plan_is_compiled_once_and_found_again(tmp_path: Path) -> None:
    build = Compiler()
    first = PlanCache(tmp_path).load_or_build(small_key(), ORIGIN, build)
    again = PlanCache(tmp_path).load_or_build(small_key(), ORIGIN, build)
    assert (first.was_built, again.was_built, build.runs) == (True, False, 1)
    assert first.plan == again.plan == small_plan()
    assert again.directory == first.directory == tmp_path / "plans" / small_key().name
    assert first.build_seconds > 0 == again.build_seconds


def test_another_key_is_another_plan_and_the_log_says_what_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build, cache = Compiler(), PlanCache(tmp_path)
    cache.load_or_build(small_key(), ORIGIN, build)
    caplog.clear()
    with caplog.at_level(logging.INFO, "trivium"):
        cache.load_or_build(small_key(isa="avx512vnni"), ORIGIN, build)
    assert build.runs == 2
    assert [record.getMessage() for record in caplog.records] == [
        "compiling a plan for tiny; the nearest one in the cache was for isa avx2, asked avx512vnni"
    ]
    assert len(cache.entries()) == 2


def test_a_damaged_plan_is_compiled_anew_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build, cache = Compiler(), PlanCache(tmp_path)
    cache.load_or_build(small_key(), ORIGIN, build)
    path = plan_file(cache.directory(small_key()))
    path.write_bytes(path.read_bytes()[:1000])
    with caplog.at_level(logging.WARNING, "trivium"):
        assert cache.load_or_build(small_key(), ORIGIN, build).was_built
    assert {record.getMessage()[:15] for record in caplog.records} == {"compiling anew:"}
    assert str(path) in caplog.text
    assert read_plan(path.parent).plan == small_plan()


def test_a_plan_for_something_else_in_its_place_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build, cache = Compiler(), PlanCache(tmp_path)
    write_plan(small_stored(key=small_key(kernels="k0")), cache.directory(small_key()))
    with caplog.at_level(logging.INFO, "trivium"):
        assert cache.load_or_build(small_key(), ORIGIN, build).was_built
    assert "was for kernels k0, asked k1" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_warns_once_and_the_plan_runs_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", fail)
    build, cache = Compiler(), PlanCache(tmp_path)
    for _ in range(2):
        held = cache.load_or_build(small_key(), ORIGIN, build)
        assert held.plan == small_plan()
        assert held.directory is None
    [record] = caplog.records
    for part in (str(cache.directory(small_key())), os.strerror(code), "cache_dir", "TRIVIUM_CACHE_DIR"):
        assert part in record.getMessage()


def test_a_cache_in_which_nothing_can_be_made_warns_and_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "cache").write_text("a file, where a directory should be")
    held = PlanCache(tmp_path / "cache").load_or_build(small_key(), ORIGIN, Compiler())
    assert held.plan == small_plan()
    assert held.directory is None
    [record] = caplog.records
    assert str(tmp_path / "cache") in record.getMessage()


def _build_slowly(cache: Path, log: Path) -> None:
    def build() -> Plan:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        return small_plan()

    held = PlanCache(cache).load_or_build(small_key(), ORIGIN, build)
    with log.open("a") as file:
        file.write(f"{held.plan == small_plan()}\n")


def test_of_two_processes_that_ask_at_once_one_builds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_build_slowly, args=(tmp_path / "cache", tmp_path / "log")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert sorted((tmp_path / "log").read_text().split()) == ["True", "True", "built"]


def test_a_named_plan_that_fits_is_opened(tmp_path: Path) -> None:
    write_plan(small_stored(), tmp_path)
    assert open_named_plan(tmp_path, small_key()) == small_stored()


def test_a_named_plan_that_does_not_fit_says_why_and_how_to_get_one(tmp_path: Path) -> None:
    write_plan(small_stored(), tmp_path)
    asked = small_key(limits=replace(LIMITS, max_num_batched_tokens=1024), isa="scalar")
    with pytest.raises(PlanMismatchError) as refused:
        open_named_plan(tmp_path, asked)
    assert str(refused.value) == (
        f"the plan {tmp_path} was compiled for isa avx2, asked scalar; max_num_batched_tokens 128, asked 1024. "
        f"Compile it again with the options of this command: trivium compile tiny -o {tmp_path}"
    )


def test_entries_tell_what_is_foreign(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    origins = {"here": ORIGIN, "there": Origin(model="m", processor="Other", trivium="1")}
    keys = {"here": small_key(), "there": small_key(limits=replace(LIMITS, max_logit_rows=1))}
    for name, key in keys.items():
        cache.load_or_build(key, origins[name], Compiler())
    cache.load_or_build(small_key(kernels="k0"), ORIGIN, Compiler())
    cache.load_or_build(small_key(isa="scalar"), ORIGIN, Compiler())
    cache.load_or_build(small_key(compiler="c0"), ORIGIN, Compiler())
    plan_file(cache.directory(small_key(kernels="k9"))).parent.mkdir()
    found = {entry.name: entry.is_foreign(MACHINE, "c1") for entry in cache.entries()}
    assert found == {
        keys["here"].name: None,
        keys["there"].name: "other processor",
        small_key(kernels="k0").name: "other kernels",
        small_key(isa="scalar").name: "other processor",
        small_key(compiler="c0").name: "other compiler",
        small_key(kernels="k9").name: "unusable",
    }


def test_using_a_plan_makes_it_young(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.load_or_build(small_key(), ORIGIN, Compiler())
    os.utime(plan_file(cache.directory(small_key())), (0, time.time() - 10 * 86400))
    [old] = cache.entries()
    assert 9.9 < old.age_days < 10.1
    assert old.num_bytes == plan_file(old.directory).stat().st_size
    cache.load(small_key())
    assert cache.entries()[0].age_days < 0.1


def test_a_plan_is_found_by_the_first_digits_of_its_name(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    with pytest.raises(PlanError, match=r"no plan begins with 'a' in .*holds: none"):
        cache.find("a")
    cache.load_or_build(small_key(), ORIGIN, Compiler())
    cache.load_or_build(small_key(isa="scalar"), ORIGIN, Compiler())
    name = small_key().name
    assert cache.find(name[:6]).directory == cache.directory(small_key())
    with pytest.raises(PlanError, match=rf"no plan begins with 'zz' in .*{name}"):
        cache.find("zz")
    with pytest.raises(PlanError, match="more than one plan begins with ''"):
        cache.find("")


def test_removing_frees_what_the_entry_takes_and_what_a_dead_writer_left(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.load_or_build(small_key(), ORIGIN, Compiler())
    directory = cache.directory(small_key())
    (directory / f"plan.json.1-dead{files.TEMPORARY}").write_bytes(b"x" * 100)
    expected = plan_file(directory).stat().st_size + 100
    [entry] = cache.entries()
    assert cache.remove(entry) == expected
    assert not directory.exists()
    assert cache.entries() == []


def test_a_plan_that_is_being_built_is_not_removed(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.load_or_build(small_key(), ORIGIN, Compiler())
    [entry] = cache.entries()
    with (
        locked(tmp_path / "locks" / f"plan-{entry.name}.lock"),
        pytest.raises(PlanError, match=f"plan {entry.name} is being built"),
    ):
        cache.remove(entry)
    assert cache.entries()
