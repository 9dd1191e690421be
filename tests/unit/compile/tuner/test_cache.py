"""The tuning cache: one file, read with suspicion, written by several processes, and never in the way."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from support.small_plan import small_plan
from trivium.base import files
from trivium.compile.tuner import Timing, TuningCache
from trivium.compile.tuner.space import cases_of
from trivium.plan.cost import MachineLimits
from trivium.plan.machine import Machine

HERE = Machine(processor="Test 9000", isa="avx2", threads=2, kernels="k1", compiler="GNU")
THERE = replace(HERE, processor="Test 9001")
LIMITS = MachineLimits(memory_bytes=35e9, cache_bytes=180e9, operations={"int8": 9e11, "bf16": 4e11, "f32": 2e11})
FIRST, SECOND = list(cases_of(small_plan()))[:2]
DIRECT = Timing(best="direct", seconds={"auto": 2e-3, "direct": 1e-3})


def test_what_is_kept_is_found_by_the_same_machine(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path, HERE)
    assert (cache.timings(), cache.limits()) == ({}, None)
    assert cache.keep({FIRST: DIRECT})
    assert cache.keep_limits(LIMITS)
    again = TuningCache(tmp_path, HERE)
    assert again.timings() == {str(FIRST): DIRECT}
    assert again.limits() == LIMITS
    assert again.best({str(FIRST): FIRST, str(SECOND): SECOND}) == {FIRST: "direct"}


def test_machines_share_the_file_and_see_only_their_own(tmp_path: Path) -> None:
    here, there = TuningCache(tmp_path, HERE), TuningCache(tmp_path, THERE)
    here.keep({FIRST: DIRECT})
    there.keep({SECOND: DIRECT})
    there.keep_limits(LIMITS)
    assert list(here.timings()) == [str(FIRST)]
    assert list(there.timings()) == [str(SECOND)]
    assert here.limits() is None


def test_an_entry_under_a_digest_that_is_not_its_own_is_not_used(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path, HERE)
    TuningCache(tmp_path, THERE).keep({FIRST: DIRECT})
    document = json.loads(cache.path.read_text())
    document["machines"][HERE.digest] = document["machines"].pop(THERE.digest)
    cache.path.write_text(json.dumps(document))
    assert cache.timings() == {}


def test_forgetting_others_keeps_ours(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path, HERE)
    assert cache.forget_others() == 0
    cache.keep({FIRST: DIRECT})
    TuningCache(tmp_path, THERE).keep({SECOND: DIRECT})
    TuningCache(tmp_path, replace(HERE, kernels="k0")).keep({SECOND: DIRECT})
    assert cache.forget_others() == 2
    assert list(cache.timings()) == [str(FIRST)]
    assert TuningCache(tmp_path, THERE).timings() == {}
    assert cache.forget_others() == 0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": "trivium tuning", "version": 99, "machines": {}}', '{"format": 1, "machines": 2}'],
)
def test_a_file_that_cannot_be_used_is_begun_anew(tmp_path: Path, text: str) -> None:
    cache = TuningCache(tmp_path, HERE)
    cache.path.write_text(text)
    assert cache.timings() == {}
    assert cache.keep({FIRST: DIRECT})
    assert cache.timings() == {str(FIRST): DIRECT}


@pytest.mark.parametrize(
    "entry",
    [
        {"machine": 1},
        {"products": {}},
        {"machine": {"processor": "Test 9000"}, "products": {}},
        [],
        "text",
    ],
)
def test_a_damaged_entry_is_begun_anew(tmp_path: Path, entry: object) -> None:
    cache = TuningCache(tmp_path, HERE)
    cache.path.write_text(json.dumps({"format": "trivium tuning", "version": 1, "machines": {HERE.digest: entry}}))
    assert cache.timings() == {}
    assert cache.keep({FIRST: DIRECT})
    assert cache.timings() == {str(FIRST): DIRECT}


def test_a_kernel_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    cache = TuningCache(tmp_path, HERE)
    cache.keep({FIRST: DIRECT, SECOND: replace(DIRECT, best="magic")})
    assert list(cache.timings()) == [str(FIRST)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_is_a_warning_and_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    cache = TuningCache(tmp_path, HERE)
    cache.keep({FIRST: DIRECT})

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", fail)
    assert not cache.keep({SECOND: DIRECT})
    assert str(cache.path) in caplog.text
    assert os.strerror(code) in caplog.text
    assert list(cache.timings()) == [str(FIRST)]
