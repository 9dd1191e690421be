"""One model under every spelling of rope scaling: equal spellings give equal bits, and scaling is never passed over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.golden import MODELS, golden_answers, load_executor, prompt_logits
from trivium.base.errors import ModelError
from trivium.models import parse_config

NAME = "llama-gqa"
LINEAR = [
    {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2}},
    {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 2}},
    {"rope_parameters": {"type": "linear", "factor": 2, "rope_theta": 10000.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 10000.0}},
]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def respelled(directory: Path, spelling: dict[str, Any]) -> Path:
    """Copy the golden model with its rope settings replaced."""
    config = json.loads((MODELS / NAME / "config.json").read_text())
    del config["rope_parameters"]
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**config, **spelling}))
    shutil.copy(MODELS / NAME / "model.safetensors", directory)
    return directory


def logits_of(directory: Path) -> NDArray[np.float32]:
    golden = golden_answers(MODELS / NAME)[1]
    return prompt_logits(load_executor(directory), golden.prompt, golden.reach)


def test_spellings_of_linear_scaling_give_equal_logits_that_differ_from_unscaled(tmp_path: Path) -> None:
    scaled = [logits_of(respelled(tmp_path / str(i), spelling)) for i, spelling in enumerate(LINEAR)]
    for logits in scaled[1:]:
        np.testing.assert_array_equal(logits, scaled[0])
    assert np.abs(scaled[0] - logits_of(MODELS / NAME)).max() > 0.01


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_raises_the_usable_context_in_both_spellings(key: str, tmp_path: Path) -> None:
    directory = respelled(tmp_path / "model", {key: YARN})
    config = parse_config(json.loads((directory / "config.json").read_text()))
    assert config.max_positions == 4 * 64
    assert np.abs(logits_of(directory) - logits_of(MODELS / NAME)).max() > 0.01


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_an_unknown_kind_is_refused_in_both_spellings(key: str, tmp_path: Path) -> None:
    directory = respelled(tmp_path / "model", {key: {"type": "spiral", "factor": 2.0}})
    with pytest.raises(ModelError, match="spiral"):
        load_executor(directory)
