"""Rope frequencies against transformers' own, at the sizes of published models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trivium.ir.rope import rope_angles, rope_frequencies
from trivium.models import parse_config

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),  # other libraries' deprecations are not ours to fail on
]

ULP = 2.0**-23
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 1024,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}
LONG = [1.0 + 0.9 * i for i in range(64)]
SHORT = [1.0 + 0.05 * i for i in range(64)]
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("linear", {"factor": 8.0}, 100),
    ("dynamic", {"factor": 2.0}, 131072),
    ("dynamic", {"factor": 2.0}, 200_000),
    ("llama3", LLAMA3, 100),
    ("yarn", YARN, 100),
    ("yarn", {**YARN, "truncate": False, "beta_fast": 24.0, "beta_slow": 2.0}, 100),
    ("yarn", {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}, 100),
    ("yarn", {**YARN, "attention_factor": 1.25}, 100),
    ("longrope", {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096}, 4096),
    ("longrope", {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096}, 4097),
    ("longrope", {"short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.5}, 100),
]


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize(("kind", "settings", "reach"), KINDS)
def test_frequencies_and_attention_factor_are_those_of_transformers(
    kind: str, settings: dict[str, Any], reach: int, theta: float
) -> None:
    import transformers  # noqa: PLC0415  (the oracle)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415

    config = transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": kind, "rope_theta": theta, **settings})
    expected, expected_scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=reach)
    ours = parse_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}).layers[0].rope
    assert ours is not None
    found, scale = rope_frequencies(ours, reach)
    np.testing.assert_allclose(found, expected.numpy(), rtol=4 * ULP, atol=0)
    assert scale == pytest.approx(expected_scale, rel=1e-12)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_tables_are_those_of_transformers_within_float32(theta: float) -> None:
    """An angle of a radians is known to about a * 2**-23; beyond that nothing is comparable."""
    import torch  # noqa: PLC0415  (the oracle)
    import transformers  # noqa: PLC0415
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: PLC0415

    config = transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": theta})
    positions = np.array([0, 1, 2, 63, 64, 1000, 8191, 131071])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor(positions)[None])
    ours = parse_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}).layers[0].rope
    assert ours is not None
    table = rope_angles(ours, positions, np.full(8, 200_000))
    tolerance = 4 * ULP * (1 + positions[:, None])
    assert (np.abs(table[:, 0] - cos[0, :, :64].numpy()) <= tolerance).all()
    assert (np.abs(table[:, 1] - sin[0, :, :64].numpy()) <= tolerance).all()
