"""Whatever a configuration holds, it is read or refused with a `ModelError`; nothing else escapes."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.golden import MODELS
from support.golden_cases import CASES
from trivium.base.errors import ModelError
from trivium.config.model import ModelConfig
from trivium.ir.rope import rope_angles
from trivium.models import build_graph, kv_spec, parse_config

CONFIGS = [json.loads((MODELS / case.name / "config.json").read_text()) for case in CASES]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([0, -1, 1, 2, 3, 7, 1 << 40, 1e-9, 1e300, "", "linear", "yarn", "silu", "full_attention"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


def places(config: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List the paths of all keys, nested ones too."""
    found = []
    for key, value in config.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


def with_value(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def check_rope_is_finite(config: ModelConfig) -> None:
    for layer in config.layers:
        assert layer.rope is not None
        assert np.isfinite(rope_angles(layer.rope, [0, 500], [10, 501])).all()


def read_or_refused(config: dict[str, Any]) -> ModelConfig | None:
    try:
        return parse_config(config)
    except ModelError:
        return None


@settings(max_examples=300)
@given(data=st.data())
def test_any_value_under_any_key_is_read_or_refused(data: st.DataObject) -> None:
    config = data.draw(st.sampled_from(CONFIGS))
    path = data.draw(st.sampled_from(places(config)))
    parsed = read_or_refused(with_value(config, path, data.draw(JSON)))
    if parsed is not None and parsed.num_layers < 50:
        build_graph(parsed)
        kv_spec(parsed, page_len=16, element_bytes=4)
        check_rope_is_finite(parsed)


@settings(max_examples=200)
@given(config=st.dictionaries(st.sampled_from(sorted({path[-1] for path in map(tuple, places(CONFIGS[0]))})), JSON))
def test_any_object_is_read_or_refused(config: dict[str, Any]) -> None:
    read_or_refused(config)


@pytest.mark.parametrize("config", CONFIGS, ids=[case.name for case in CASES])
def test_a_missing_key_is_defaulted_or_refused_and_what_is_read_has_finite_rope(config: dict[str, Any]) -> None:
    for path in places(config):
        smaller = copy.deepcopy(config)
        at = smaller
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        parsed = read_or_refused(smaller)
        if parsed is not None:
            check_rope_is_finite(parsed)
