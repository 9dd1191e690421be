"""Each architecture's graph as text, so that a change to one is seen and meant; and the KV groups of mixed layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trivium.base.errors import UnknownArchitectureError
from trivium.ir.printer import to_text
from trivium.models import build_graph, known_architectures, kv_spec, parse_config
from trivium.models._template import TEMPLATE
from trivium.models.decoder import build_decoder
from trivium.models.parse import parse_as

GRAPHS = Path(__file__).parent / "graphs"
SIZES: dict[str, Any] = {
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": 50,
    "max_position_embeddings": 100,
    "sliding_window": 8,
}


def config_of(architecture: str, **settings: Any) -> Any:
    sizes = {**SIZES, **settings}
    nested = {"text_config": sizes} if architecture == "Gemma3ForConditionalGeneration" else sizes
    return parse_config({"architectures": [architecture], **nested})


@pytest.mark.parametrize("architecture", known_architectures())
def test_the_graph_is_the_one_on_file(architecture: str) -> None:
    """Where a change is meant, replace the file by the text that this prints."""
    text = to_text(build_graph(config_of(architecture)))
    path = GRAPHS / f"{architecture}.txt"
    assert path.exists(), f"write {path}:\n{text}"
    assert text == path.read_text(), text


def test_the_template_parses_and_builds_but_is_not_registered() -> None:
    config = parse_as(TEMPLATE, {**SIZES, "attention_bias": True, "partial_rotary_factor": 0.67})
    text = to_text(build_decoder(config, TEMPLATE.layer))
    assert TEMPLATE.name not in known_architectures()
    assert text.count("= rms_norm(") == 2
    assert "window=8" in text
    assert "layers.0.self_attn.q_proj.bias" in text
    assert "rope(rotary_dim=4" in text


def test_tied_embeddings_need_no_head() -> None:
    tied = build_graph(config_of("LlamaForCausalLM", tie_word_embeddings=True)).param_shapes()
    untied = build_graph(config_of("LlamaForCausalLM")).param_shapes()
    assert set(untied) - set(tied) == {"lm_head.weight"}


def test_layers_with_equal_rope_share_one_table() -> None:
    one = to_text(build_graph(config_of("Gemma2ForCausalLM", num_hidden_layers=4)))
    two = to_text(build_graph(config_of("Gemma3ForCausalLM", num_hidden_layers=6)))
    assert one.count("= rope_table(") == 1
    assert two.count("= rope_table(") == 2


def test_only_wanted_rows_reach_the_last_norm() -> None:
    lines = to_text(build_graph(config_of("LlamaForCausalLM"))).splitlines()
    gathered, normed, logits, output = lines[-4:]
    assert "gather_rows" in gathered
    assert "norm.weight" in normed
    assert "f32[R,50]" in logits
    assert output.startswith("output logits")


def test_a_graph_of_an_unknown_architecture_is_refused() -> None:
    config = config_of("LlamaForCausalLM")
    object.__setattr__(config, "architecture", "MambaForCausalLM")
    with pytest.raises(UnknownArchitectureError, match="MambaForCausalLM"):
        build_graph(config)


def test_kv_groups_are_layers_of_equal_window() -> None:
    config = config_of("Gemma3ForCausalLM", num_hidden_layers=7, sliding_window_pattern=3)
    spec = kv_spec(config, page_len=16, element_bytes=2)
    local, whole = spec.groups
    assert (local.kind, local.window, local.layers) == ("window", 8, (0, 1, 3, 4, 6))
    assert (whole.kind, whole.window, whole.layers) == ("full", None, (2, 5))
    assert local.bytes_per_token == 5 * 2 * 2 * 6 * 2
    assert spec.bytes_per_token == 7 * 2 * 2 * 6 * 2
    assert spec.page_len == 16


def test_a_model_without_windows_has_one_group() -> None:
    (group,) = kv_spec(config_of("Qwen3ForCausalLM", num_hidden_layers=3), page_len=1, element_bytes=4).groups
    assert (group.kind, group.layers) == ("full", (0, 1, 2))
