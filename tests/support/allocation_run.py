"""A decoding engine in a process of its own whose allocations are counted (see count_allocations.c, preloaded).

    LD_PRELOAD=count_allocations.so python allocation_run.py NUM_REQUESTS NUM_STEPS NUM_ADAPTERS

Prints JSON: per step, calls of malloc and its kin inside `forward` and `sample` and in the whole step, and arrays whose
data were allocated in the whole step; and what the counters say of one array and one block, to show that they count.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from support.tiny_engine import tiny_loop
from trivium.config.sampling import SamplingParams
from trivium.engine.messages import Submit
from trivium.runtime.adapters import LowRank
from trivium.schedule.step import Step

_SET_HANDLER = 304
"""Place of PyDataMem_SetHandler among NumPy's C functions (numpy/_core/code_generators/numpy_api.py)."""
_WARM_UP = 20
_BIG = 1 << 12
"""Bytes of the block that is to show that malloc is counted; the interpreter takes small ones from its own pools."""


def counters() -> tuple[Callable[[], int], Callable[[], int]]:
    """Return the counters of malloc's calls and of arrays, the latter after NumPy has been told to use the handler."""
    library = ctypes.CDLL(None)
    library.count_calls.restype = library.count_arrays.restype = ctypes.c_long
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    read_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    read_capsule.restype, read_capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = read_capsule(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    address = ctypes.cast(functions, ctypes.POINTER(ctypes.c_void_p))[_SET_HANDLER]
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(address or 0)
    handler = ctypes.addressof(ctypes.c_char.in_dll(library, "array_handler"))
    set_handler(new_capsule(handler, b"mem_handler", None))
    return library.count_calls, library.count_arrays


class Watch:
    """Counts during calls."""

    def __init__(self) -> None:
        self._calls, self._arrays = counters()
        self.calls: dict[str, list[int]] = {}
        self.arrays: dict[str, list[int]] = {}

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `call`: what it allocates is noted under `name`."""
        calls, arrays = self.calls.setdefault(name, []), self.arrays.setdefault(name, [])

        def counted(*given: Any) -> Any:
            calls_before, arrays_before = self._calls(), self._arrays()
            result = call(*given)
            calls_after, arrays_after = self._calls(), self._arrays()
            calls.append(calls_after - calls_before)
            arrays.append(arrays_after - arrays_before)
            return result

        return counted


def load_adapters(executor: Any, num_adapters: int) -> None:
    """Load adapters of different ranks for all products."""
    rng = np.random.default_rng(1)
    plan = executor.plan
    shapes = {weight.name: weight.shape for weight in plan.weights if len(weight.shape) == 2}
    asked = (each for each in plan.programs["adapters"].instructions if each.op == "adapter_delta")
    names = dict.fromkeys(name for each in asked for name in each.attrs["parameters"])
    for slot in range(num_adapters):
        rank = 3 + 9 * slot
        matrices = {name: [rng.standard_normal((rank, side)) for side in shapes[name]] for name in names}
        executor.load_adapter(slot, {name: LowRank(a, b.T, 0.01) for name, (b, a) in matrices.items()})


def in_turn(num_adapters: int, forward: Callable[[Step], None]) -> Callable[[Step], None]:
    """Give requests no adapter and each adapter in turn, before `forward`."""

    def adapted(step: Step) -> None:
        for request in range(step.num_requests):
            step.adapter_slot[request] = request % (num_adapters + 1) - 1
        forward(step)

    return adapted


def main(num_requests: int, num_steps: int, num_adapters: int) -> None:
    """Decode, count, print."""
    watch = Watch()
    loop = tiny_loop(executor="native", kv_cache_memory="4MiB", max_num_seqs=num_requests)
    for idx in range(num_requests):
        params = SamplingParams(
            max_tokens=_WARM_UP + num_steps + 16, temperature=(idx % 2) * 0.8, top_p=0.9, seed=idx, ignore_eos=True
        )
        loop.submit(Submit(request_id=f"r{idx}", prompt_ids=[1 + idx, 2, 3], params=params))
    executor = loop._executor
    load_adapters(executor, num_adapters)
    forward = executor.forward
    executor.forward = in_turn(num_adapters, forward)  # type: ignore[method-assign]
    for _ in range(_WARM_UP):
        loop.step()
    executor.forward = in_turn(num_adapters, watch.watched("forward", forward))  # type: ignore[method-assign]
    executor.sample = watch.watched("sample", executor.sample)  # type: ignore[method-assign]
    step = watch.watched("step", loop.step)
    for _ in range(num_steps):
        step()
    watch.watched("one array", lambda: np.empty(3))()
    watch.watched("one block", lambda: bytearray(_BIG))()
    sys.stdout.write(json.dumps({"calls": watch.calls, "arrays": watch.arrays}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
