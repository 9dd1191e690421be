"""The native module is found or reported, and its instruction set can be lowered, never raised."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trivium.base.errors import ConfigError
from trivium.kernels import native

needs_native = pytest.mark.skipif(native.load() is None, reason="needs native kernels")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIVIUM_")}
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SHOW = "from trivium.kernels import native; native.load(); print(native.describe())"


@needs_native
def test_the_isa_variable_lowers_the_level() -> None:
    done = run(SHOW, TRIVIUM_ISA="scalar")
    assert "native kernels, scalar" in done.stdout


@needs_native
def test_an_unknown_isa_is_refused_by_name() -> None:
    done = run(SHOW, TRIVIUM_ISA="sse9")
    assert done.returncode != 0
    assert "ConfigError: environment variable TRIVIUM_ISA is 'sse9'; it must be one of numpy, scalar" in done.stderr


def test_going_without_is_one_warning_that_says_what_to_do() -> None:
    done = run(f"{SHOW}; native.load()", TRIVIUM_ISA="numpy")
    assert done.returncode == 0
    assert "NumPy kernels (no native module: TRIVIUM_ISA=numpy)" in done.stdout
    assert done.stderr.count("native kernels are missing") == 1


def test_a_required_module_that_is_missing_is_an_error() -> None:
    done = run(SHOW, TRIVIUM_ISA="numpy", TRIVIUM_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "ConfigError: TRIVIUM_REQUIRE_NATIVE is set" in done.stderr


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_thread_counts_outside_the_limits_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match="threads must be 1 to 1024"):
        native.set_num_threads(count)


@needs_native
def test_usable_cores_respect_the_affinity_mask() -> None:
    code = """
import os
from trivium.kernels import native
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print(native.usable_cores())
"""
    assert run(code).stdout.strip() == "1"


@needs_native
def test_a_forked_child_computes_with_threads_of_its_own() -> None:
    code = """
import os, numpy as np, warnings
from trivium.kernels import gemm, native
native.set_num_threads(2)
a, w = np.ones((64, 256), np.float32), gemm.pack(np.ones((512, 256), np.float32))
gemm.gemm(a, w)
warnings.simplefilter("ignore")
pid = os.fork()
if pid == 0:
    os._exit(0 if (gemm.gemm(a, w) == 256).all() else 1)
assert os.waitpid(pid, 0)[1] == 0
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


@needs_native
def test_python_threads_may_multiply_at_the_same_time() -> None:
    code = """
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from trivium.kernels import gemm
a, w = np.ones((64, 256), np.float32), gemm.pack(np.ones((512, 256), np.float32))
with ThreadPoolExecutor(4) as pool:
    assert all((out == 256).all() for out in pool.map(lambda _: gemm.gemm(a, w), range(200)))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
