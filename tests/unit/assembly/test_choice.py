"""What can run a model here, and what is said where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trivium.assembly.choice import choose_executor, native_obstacle
from trivium.assembly.model import silent
from trivium.base.errors import ConfigError
from trivium.config.options import EngineOptions
from trivium.config.resolve import options_from
from trivium.kernels import native

UNTOUCHED: Any = None
"""Refusals come before the model is looked at."""


def by_hand(values: dict[str, Any]) -> EngineOptions:
    """Options that nobody has checked for contradictions, as a program may make them."""
    options = EngineOptions()
    for part in ("executor", "cache", "compile"):
        record = getattr(options, part)
        own = {name: value for name, value in values.items() if hasattr(record, name)}
        options = replace(options, **{part: replace(record, **own)})
    return options


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"weights": "int8"}, "weights is int8, but the reference executor runs, and it computes in float32"),
        ({"activation_group": "64"}, "activation_group is 64, but the reference executor runs"),
        ({"kv_cache_dtype": "bf16"}, "kv_cache_dtype is bf16, but the reference executor runs"),
        ({"plan": "somewhere"}, "plan is somewhere, but the reference executor runs"),
    ],
)
def test_what_the_reference_executor_cannot_do_is_refused_with_value_and_way_out(
    asked: dict[str, str], message: str
) -> None:
    (name,) = asked
    with pytest.raises(ConfigError) as caught:
        choose_executor(by_hand({**asked, "executor": "reference"}), UNTOUCHED, silent)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(f"leave {name} out, or set executor to native")


def test_where_native_cannot_run_the_reason_is_told_and_native_is_not_proposed() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_executor(options_from({"weights": "int8", "page_len": 4}), UNTOUCHED, silent)
    assert "since page_len is 4, and native kernels have pages of 16 tokens, and it computes" in str(caught.value)
    assert str(caught.value).endswith("leave weights out")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"page_len": 4}, "page_len is 4, and native kernels have pages of 16 tokens"),
        ({"array_library": "torch", "device": "cuda"}, "array_library is torch and device is cuda, which only"),
    ],
)
def test_native_that_is_asked_for_and_impossible_is_refused_with_the_reason(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match="--executor native is not possible: " + reason):
        choose_executor(by_hand({**asked, "executor": "native"}), UNTOUCHED, silent)


def test_without_the_native_module_nothing_native_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    assert native_obstacle(options_from({})) == "the native kernels are not here (trivium doctor says why)"


@pytest.mark.parametrize("dtype", ["auto", "f32"])
def test_keys_and_values_in_float32_are_what_the_reference_executor_has(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr("trivium.assembly.reference.ReferenceParts", lambda options, model: made.append(model))
    choose_executor(options_from({"kv_cache_dtype": dtype, "executor": "reference"}), UNTOUCHED, silent)
    assert len(made) == 1
