"""While serving nothing is allocated: native kernels take no memory in a step, and no array is made.

What is counted, in a process of its own (see `support/allocation_run.py`): every call of malloc and its kin by any
thread, and every array that NumPy allocates data for. The interpreter's small objects come from its own pools.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trivium.kernels import native

SUPPORT = Path(__file__).parents[2] / "support"
NUM_STEPS = 96
"""Six pages of every request: also steps that take pages are counted."""

pytestmark = [
    pytest.mark.skipif(native.load() is None, reason="needs the native module"),
    pytest.mark.skipif(sys.platform != "linux", reason="counts by preloading functions before the GNU C library's"),
]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled counter."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("counter") / "count_allocations.so"
    source = SUPPORT / "count_allocations.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)  # noqa: S603
    return library


@pytest.fixture(scope="module", params=[(1, 0), (4, 0), (16, 0), (5, 2)], ids=["1", "4", "16", "5 with adapters"])
def counts(request: pytest.FixtureRequest, counter: Path) -> dict[str, Any]:
    """What a decoding engine allocates with so many requests and adapters."""
    num_requests, num_adapters = request.param
    numbers = [str(number) for number in (num_requests, NUM_STEPS, num_adapters)]
    command = [sys.executable, str(SUPPORT / "allocation_run.py"), *numbers]
    environ = {**os.environ, "LD_PRELOAD": str(counter)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return {"num_requests": num_requests, **json.loads(done.stdout)}


def test_the_counters_count(counts: dict[str, Any]) -> None:
    assert counts["arrays"]["one array"] == [1]
    assert counts["calls"]["one block"] == [1]


def test_a_forward_step_allocates_nothing(counts: dict[str, Any]) -> None:
    assert counts["calls"]["forward"] == [0] * NUM_STEPS


def test_sampling_allocates_only_where_more_candidates_are_left_than_ever_before(counts: dict[str, Any]) -> None:
    # Room for candidates at least doubles when it grows, and there are at most 512 tokens.
    assert sum(counts["calls"]["sample"]) <= 9
    assert sum(counts["calls"]["sample"][NUM_STEPS // 2 :]) <= 1


def test_no_step_allocates_an_array(counts: dict[str, Any]) -> None:
    assert counts["arrays"]["step"] == [0] * NUM_STEPS


def test_a_whole_step_allocates_little_beside_token_texts(counts: dict[str, Any]) -> None:
    # The detokenizer makes a string per token; lists of tokens and pages grow now and then.
    middle = sorted(counts["calls"]["step"])[NUM_STEPS // 2]
    assert middle <= 2 * counts["num_requests"] + 4
