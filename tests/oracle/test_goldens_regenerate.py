"""The committed goldens are what the tools still make of the same seeds and files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from support.adapter_cases import ADAPTER_CASES, AdapterCase
from support.golden import GOLDEN, MODELS, read_json
from support.golden_cases import CASES, GoldenCase
from trivium.config.options import ModelOptions
from trivium.weights.resolve import resolve_model

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),  # other libraries' deprecations are not ours to fail on
]


def tool(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_model_comes_out_the_same(case: GoldenCase) -> None:
    assert tool("make_goldens").check(case, MODELS / case.name) == []


@pytest.mark.parametrize("case", ADAPTER_CASES, ids=lambda case: case.name)
def test_a_golden_adapter_comes_out_the_same(case: AdapterCase) -> None:
    assert tool("make_adapter_goldens").check(case, GOLDEN / "adapters" / case.name) == []


def test_every_committed_model_has_a_case() -> None:
    assert sorted(path.name for path in MODELS.iterdir()) == sorted(case.name for case in CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3-270m", marks=pytest.mark.soak)])
def test_a_real_models_answers_come_out_the_same(name: str) -> None:
    committed = read_json(GOLDEN / "real" / f"{name}.json")
    found = tool("make_real_goldens").answers_of(resolve_model(ModelOptions(model=name)).path)
    for key in ("part_loss", "whole_loss"):
        assert found.pop(key) == pytest.approx(committed.pop(key), abs=1e-4)
    for old, new in zip(committed["answers"], found["answers"], strict=True):
        assert new.pop("margin") == pytest.approx(old.pop("margin"), abs=1e-3)
    assert found == committed
