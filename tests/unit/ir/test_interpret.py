"""The interpreter: order, lifetimes, tracing, and what it refuses."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from support.tiny_steps import ExactKernels
from trivium.base.errors import InternalError
from trivium.ir.interpret import Interpreter
from trivium.ir.parser import parse
from trivium.runtime.arrays import NumpyLibrary

CHAIN = """\
graph Chain
input positions: i32[T]
input embeds: f32[T,4]
param weight: f32[4]
%0: f32[T,4] = rms_norm(embeds, weight; eps=1e-05)
%1, %2: f32[T,1], f32[T,3] = split(%0; sizes=(1, 3))
%3: f32[T,3] = scale(%2; factor=2.0)
%4: f32[T,3] = add(%3, %2)
output logits = %4
output first = %1
"""


def interpreter(params: dict[str, Any] | None = None) -> Interpreter:
    bound = {"weight": np.ones(4, np.float32)} if params is None else params
    return Interpreter(parse(CHAIN), NumpyLibrary(ExactKernels()), bound)


def inputs() -> dict[str, Any]:
    return {"positions": np.arange(2, dtype=np.int32), "embeds": np.array([[1, 1, 1, 1], [2, 2, 2, 2]], np.float32)}


class NoMemory:
    """KV memory of a graph without attention."""

    def write(self, layer: int, k: Any, v: Any) -> None:
        raise NotImplementedError

    def reads(self, layer: int, window: int | None) -> list[Any]:
        raise NotImplementedError


def test_outputs_come_by_name_and_runs_repeat() -> None:
    chain = interpreter()
    for _ in range(2):
        outputs = chain.run(inputs(), NoMemory())
        np.testing.assert_allclose(outputs["logits"], np.full((2, 3), 3.0), rtol=1e-4)
        np.testing.assert_allclose(outputs["first"], np.ones((2, 1)), rtol=1e-4)


def test_a_trace_sees_every_value_in_order() -> None:
    seen = []
    interpreter().run(inputs(), NoMemory(), trace=lambda name, array: seen.append((name, array.shape)))
    assert seen == [("%0", (2, 4)), ("%1", (2, 1)), ("%2", (2, 3)), ("%3", (2, 3)), ("%4", (2, 3))]


def test_a_value_is_dropped_after_its_last_use() -> None:
    made: dict[str, weakref.ref[Any]] = {}
    alive_at: dict[str, set[str]] = {}

    def watch(name: str, array: Any) -> None:
        made[name] = weakref.ref(array)
        alive_at[name] = {known for known, reference in made.items() if reference() is not None}

    interpreter().run(inputs(), NoMemory(), trace=watch)
    # %0 is last read by the split, %2 and %3 by the add, %1 is an output.
    assert alive_at["%3"] == {"%1", "%2", "%3"}
    assert alive_at["%4"] == {"%1", "%2", "%3", "%4"}
    assert made["%2"]() is None
    assert made["%3"]() is None


def test_a_missing_parameter_or_input_is_named() -> None:
    with pytest.raises(InternalError, match="parameter weight is not bound"):
        interpreter({})
    with pytest.raises(InternalError, match="input embeds is missing"):
        interpreter().run({"positions": np.arange(2)}, NoMemory())
