"""A float16 checkpoint runs natively as float16: half of the bytes, and the bits of the same numbers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.golden import prompt_logits
from support.tiny_checkpoints import hub_config, hub_weights, write_hub
from trivium.assembly.model import open_model, silent
from trivium.assembly.native import NativeParts
from trivium.config.resolve import options_from
from trivium.kernels import native

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_float16_weights_stay_float16_and_give_the_bits_of_float32(architecture: str, tmp_path: Path) -> None:
    config = hub_config(architecture)
    weights = {name: (value * 0.2).astype(np.float16) for name, value in hub_weights(config).items()}
    directory = write_hub(tmp_path / "model", config, weights)
    found = {}
    for choice in ("auto", "f32"):
        asked = {"model": str(directory), "weights": choice, "kv_cache_dtype": "f32", "cache_dir": str(tmp_path)}
        model = open_model(options_from(asked))
        parts = NativeParts(options_from(asked), model)
        executor = parts.make((4,) * len(parts.kv_spec.groups), silent)
        found[choice] = (set(parts.formats.values()), executor.weight_bytes, prompt_logits(executor, PROMPT, 64))
        executor.close()
        model.checkpoint.close()
    assert found["auto"][0] == {"f16"}
    assert 2 * found["auto"][1] == found["f32"][1]
    assert np.isfinite(found["auto"][2]).all()
    np.testing.assert_array_equal(found["auto"][2], found["f32"][2])
