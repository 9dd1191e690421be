"""Binding: forms by use, order by size, and parameters that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from support.tiny_steps import ExactKernels, random_parameters, tiny_config, tiny_graph
from trivium.base.errors import CheckpointError, InternalError
from trivium.ir.builder import Builder
from trivium.runtime.arrays import Matrix, NumpyLibrary
from trivium.runtime.bind import bind_graph

GRAPH = tiny_graph(tiny_config())


class Lazy:
    """A parameter that notes when it is read."""

    def __init__(self, name: str, array: np.ndarray, log: list[str]) -> None:
        self.shape = array.shape
        self._name, self._array, self._log = name, array, log

    def float32(self) -> np.ndarray:
        self._log.append(self._name)
        return self._array


def bind(parameters: dict[str, np.ndarray], **options: object):
    return bind_graph(GRAPH, parameters, NumpyLibrary(ExactKernels()), **options)  # type: ignore[arg-type]


def test_parameters_are_read_once_and_largest_first() -> None:
    log: list[str] = []
    arrays = random_parameters(GRAPH)
    bind({name: Lazy(name, array, log) for name, array in arrays.items()})
    assert sorted(log) == sorted(arrays)
    sizes = [arrays[name].size for name in log]
    assert sizes == sorted(sizes, reverse=True)


def test_each_parameter_is_kept_in_the_forms_its_uses_need() -> None:
    bound = bind(random_parameters(GRAPH)).arrays
    tied, product, vector = bound["embed_tokens.weight"], bound["layers.0.up.weight"], bound["layers.0.qkv.bias"]
    assert isinstance(tied, Matrix)
    assert tied.table is None
    assert tied.num_bytes == 61 * 16 * 4
    assert isinstance(product, Matrix)
    assert product.table is None
    assert product.packed is not None
    assert isinstance(vector, np.ndarray)


def test_progress_counts_bytes_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    parameters = random_parameters(GRAPH)
    bind(parameters, report=lambda done, total: seen.append((done, total)))
    assert len(seen) == len(parameters)
    assert seen[-1] == (sum(array.nbytes for array in parameters.values()),) * 2
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_a_missing_parameter_is_named_before_any_is_read() -> None:
    log: list[str] = []
    lazy = {name: Lazy(name, array, log) for name, array in random_parameters(GRAPH).items()}
    del lazy["norm.weight"]
    with pytest.raises(CheckpointError, match=r"Tiny: parameter norm.weight \[16\] is missing"):
        bind(lazy)
    assert log == []


def test_a_parameter_of_another_shape_is_named_with_both_shapes() -> None:
    parameters = random_parameters(GRAPH) | {"norm.weight": np.ones(15, np.float32)}
    with pytest.raises(CheckpointError, match=r"norm.weight is \[15\], not \[16\]"):
        bind(parameters)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    parameters = random_parameters(GRAPH)
    parameters["norm.weight"][3] = bad
    with pytest.raises(CheckpointError, match=r"norm\.weight holds values that are not finite"):
        bind(parameters)


def test_a_parameter_outlives_the_file_it_was_mapped_from() -> None:
    parameters = random_parameters(GRAPH)
    backing = parameters["norm.weight"].tobytes()
    view = np.frombuffer(bytearray(backing), np.float32)
    bound = bind(parameters | {"norm.weight": view}).arrays["norm.weight"]
    view[:] = np.nan
    np.testing.assert_array_equal(bound, parameters["norm.weight"])


def test_a_parameter_that_no_one_form_serves_is_refused() -> None:
    b = Builder("Odd")
    weight = b.param("weight", (4, 4))
    looked_up = b.embed(b.input("token_ids"), weight)
    b.output("logits", b.gemm(looked_up, weight))
    b.output("twice", b.add(weight, weight))
    graph = b.build()
    with pytest.raises(InternalError, match=r"weight is used as \['elements', 'product', 'rows'\]"):
        bind_graph(graph, {"weight": np.ones((4, 4), np.float32)}, NumpyLibrary(ExactKernels()))


def test_large_finite_values_are_not_mistaken_for_infinity() -> None:
    bind(random_parameters(GRAPH) | {"norm.weight": np.full(16, 3e38, np.float32)})
