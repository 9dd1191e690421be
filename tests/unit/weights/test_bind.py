"""Binding: both formats of one model give the same parameters; what is wrong is listed by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from support.tiny_checkpoints import (
    FFN,
    GGUF_NAMES,
    HEAD_WIDTH,
    HEADS,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    gguf_name,
    hub_config,
    hub_weights,
    write_gguf,
    write_hub,
)
from trivium.base.errors import CheckpointError, UnknownArchitectureError
from trivium.config.model import LayerConfig, ModelConfig
from trivium.weights.bind import Parameter, bind_parameters
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.names import LEFTOVERS, Part, expand, is_leftover, rules_for

Arrays = dict[str, np.ndarray]


def model_config(architecture: str, **changes: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "architecture": architecture,
        "num_layers": LAYERS,
        "model_width": WIDTH,
        "ffn_width": FFN,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_width": HEAD_WIDTH,
        "vocab_size": VOCAB,
        "max_positions": 128,
        "norm_eps": 1e-5,
        "layers": (LayerConfig(rope=None),) * LAYERS,
        "attention_scale": 1.0,
        "tie_embeddings": "Gemma" in architecture,
    }
    return ModelConfig(**(fields | changes))


def canonical(weights: Arrays, architecture: str) -> Arrays:
    """Return what binding must give: canonical names, split projections, norm weights that multiply."""
    query, key = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    splits = {
        "self_attn.qkv_proj": {"q_proj": (0, query), "k_proj": (query, query + key), "v_proj": (query + key, None)},
        "mlp.gate_up_proj": {"gate_proj": (0, FFN), "up_proj": (FFN, None)},
    }
    result: Arrays = {}
    for name, values in weights.items():
        short = name.removeprefix("model.")
        fused = next((fused for fused in splits if fused in short), None)
        if fused is not None:
            for part, (start, end) in splits[fused].items():
                result[short.replace(fused.split(".")[1], part)] = values[start:end]
        else:
            result[short] = values + np.float32(1) if "Gemma" in architecture and "norm" in short else values
    return result


def bind(path: Path, expected: Arrays, config: ModelConfig) -> dict[str, Parameter]:
    with open_checkpoint(path) as checkpoint:
        bound = bind_parameters(checkpoint, {name: values.shape for name, values in expected.items()}, config)
        values = {name: parameter.float32() for name, parameter in bound.items()}
    assert list(bound) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(values[name], array, err_msg=name)
        assert bound[name].shape == array.shape
    return dict(bound)


@pytest.mark.parametrize("architecture", GGUF_NAMES)
@pytest.mark.parametrize("file_format", ["safetensors", "sharded", "gguf"])
def test_every_architecture_binds_to_the_same_parameters_in_every_format(
    tmp_path: Path, architecture: str, file_format: str
) -> None:
    config = hub_config(architecture)
    weights = hub_weights(config)
    if file_format == "gguf":
        path = write_gguf(tmp_path / "x.gguf", config, weights)
    else:
        path = write_hub(tmp_path, config, weights, num_shards=3 if file_format == "sharded" else 1)
    bound = bind(path, canonical(weights, architecture), model_config(architecture))
    assert {parameter.format for parameter in bound.values()} == {"F32"}


@pytest.mark.parametrize("file_format", ["safetensors", "gguf"])
def test_biases_are_reordered_with_their_rows(tmp_path: Path, file_format: str) -> None:
    config = hub_config("LlamaForCausalLM", attention_bias=True)
    weights = hub_weights(config)
    is_gguf = file_format == "gguf"
    path = write_gguf(tmp_path / "x.gguf", config, weights) if is_gguf else write_hub(tmp_path, config, weights)
    bound = bind(path, canonical(weights, "LlamaForCausalLM"), model_config("LlamaForCausalLM"))
    assert bound["layers.1.self_attn.k_proj.bias"].shape == (KV_HEADS * HEAD_WIDTH,)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.hf_config["attention_bias"] is True


@pytest.mark.parametrize("architecture", GGUF_NAMES)
def test_gguf_names_are_those_of_the_gguf_package(architecture: str) -> None:
    weights = hub_weights(hub_config(architecture))
    rules = expand(rules_for("gguf", GGUF_NAMES[architecture]), LAYERS)
    used = {rules[name].stored for name in canonical(weights, architecture)}
    assert used == {gguf_name(GGUF_NAMES[architecture], name) for name in weights}


@pytest.mark.parametrize("prefix", ["model.", "", "language_model.model.", "model.language_model."])
def test_the_prefix_of_hub_names_is_found(tmp_path: Path, prefix: str) -> None:
    config = hub_config("Gemma3ForCausalLM", tie_word_embeddings=False)
    weights = hub_weights(config)
    head = "language_model.lm_head.weight" if prefix == "language_model.model." else "lm_head.weight"
    renamed = {
        head if name == "lm_head.weight" else prefix + name.removeprefix("model."): values
        for name, values in weights.items()
    }
    renamed["vision_tower.encoder.weight"] = np.zeros((2, 2), np.float32)
    expected = canonical(weights, "Gemma3ForCausalLM")
    for architecture in ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"):
        bind(write_hub(tmp_path, config, renamed), expected, model_config(architecture, tie_embeddings=False))


def test_quantized_rows_are_reordered_before_they_are_dequantized(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM")
    weights = hub_weights(config)
    path = write_gguf(tmp_path / "plain.gguf", config, weights)
    source = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key, field in source.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(
                key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )
    kind = gguf.GGMLQuantizationType.Q8_0
    for tensor in source.tensors:
        is_matrix = tensor.data.ndim == 2
        data = gguf.quants.quantize(tensor.data, kind) if is_matrix else np.array(tensor.data)
        writer.add_tensor(tensor.name, data, raw_dtype=kind if is_matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    rounded = {
        name: gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind) if values.ndim == 2 else values
        for name, values in weights.items()
    }
    bound = bind(tmp_path / "x.gguf", canonical(rounded, "LlamaForCausalLM"), model_config("LlamaForCausalLM"))
    assert bound["layers.0.self_attn.q_proj.weight"].format == "Q8_0"


# --- case G02 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["safetensors", "gguf"])
def test_tied_embeddings_need_no_head_in_the_file(tmp_path: Path, file_format: str) -> None:
    config = hub_config("LlamaForCausalLM", tie_word_embeddings=True)
    weights = hub_weights(config)
    assert "lm_head.weight" not in weights
    is_gguf = file_format == "gguf"
    path = write_gguf(tmp_path / "x.gguf", config, weights) if is_gguf else write_hub(tmp_path, config, weights)
    bind(path, canonical(weights, "LlamaForCausalLM"), model_config("LlamaForCausalLM", tie_embeddings=True))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.hf_config["tie_word_embeddings"] is True


def test_a_second_copy_of_a_tied_embedding_is_left_alone(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM", tie_word_embeddings=True)
    weights = hub_weights(config)
    both = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].copy()}
    path = write_hub(tmp_path, config, both)
    bind(path, canonical(weights, "LlamaForCausalLM"), model_config("LlamaForCausalLM", tie_embeddings=True))


@pytest.mark.parametrize(
    ("file_format", "names"),
    [("safetensors", "model.embed_tokens.weight"), ("gguf", "token_embd.weight")],
)
def test_a_file_without_embedding_and_head_is_refused_by_name(tmp_path: Path, file_format: str, names: str) -> None:
    config = hub_config("LlamaForCausalLM", tie_word_embeddings=True)
    weights = hub_weights(config)
    kept = {name: values for name, values in weights.items() if "embed_tokens" not in name}
    is_gguf = file_format == "gguf"
    path = write_gguf(tmp_path / "x.gguf", config, kept) if is_gguf else write_hub(tmp_path, config, kept)
    with pytest.raises(CheckpointError, match=f"lacks tensors: {re.escape(names)}"):
        bind(path, canonical(weights, "LlamaForCausalLM"), model_config("LlamaForCausalLM", tie_embeddings=True))


def test_a_missing_head_of_an_untied_model_says_what_a_tied_one_would_say(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM")
    weights = hub_weights(config)
    path = write_hub(tmp_path, config, {name: w for name, w in weights.items() if name != "lm_head.weight"})
    with pytest.raises(CheckpointError, match=r"lacks tensors: lm_head\.weight; .*tie_word_embeddings: true"):
        bind(path, canonical(weights, "LlamaForCausalLM"), model_config("LlamaForCausalLM"))


# --- what does not fit ------------------------------------------------------------------------------------------


def refusal(tmp_path: Path, change: dict[str, Any], **config_changes: Any) -> str:
    config = hub_config("LlamaForCausalLM")
    weights = hub_weights(config)
    changed = {name: values for name, values in (weights | change).items() if values is not None}
    expected = canonical(weights, "LlamaForCausalLM")
    with pytest.raises(CheckpointError) as caught:
        bind(write_hub(tmp_path, config, changed), expected, model_config("LlamaForCausalLM", **config_changes))
    assert str(tmp_path) in str(caught.value)
    return str(caught.value)


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"model.norm.weight": None, "model.layers.1.mlp.up_proj.weight": None})
    assert "lacks tensors: " in message
    assert "model.norm.weight" in message
    assert "model.layers.1.mlp.up_proj.weight" in message


def test_a_long_list_is_cut_and_counted(tmp_path: Path) -> None:
    names = [
        f"model.layers.{layer}.{kind}_layernorm.weight" for layer in range(2) for kind in ("input", "post_attention")
    ]
    projections = [f"model.layers.{layer}.self_attn.{p}_proj.weight" for layer in range(2) for p in "qkvo"]
    assert "and 4 more" in refusal(tmp_path, dict.fromkeys(names + projections))


def test_a_wrong_shape_is_shown_with_the_expected_one(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"model.norm.weight": np.zeros(31, np.float32)})
    assert "model.norm.weight has shape [31], expected [32]" in message


def test_a_tensor_of_integers_is_refused_by_its_format(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"model.norm.weight": np.zeros(32, np.int64)})
    assert "model.norm.weight has format I64, known are F32" in message


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "extra"])
def test_a_tensor_that_nothing_asks_for_is_an_error(tmp_path: Path, name: str) -> None:
    assert f"has tensors that nothing asks for: {name}" in refusal(tmp_path, {name: np.zeros(4, np.float32)})


@pytest.mark.parametrize(
    "name",
    [
        "model.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.masked_bias",
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "blk.3.attn_rot_embd.weight",
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
        "model.multi_modal_projector.mm_input_projection_weight",
    ],
)
def test_known_leftovers_may_lie_unused(name: str) -> None:
    assert is_leftover(name, model_config("LlamaForCausalLM"))


def test_parameters_are_no_leftovers_in_any_architecture() -> None:
    for architecture in GGUF_NAMES:
        weights = hub_weights(hub_config(architecture))
        config = model_config(architecture)
        gguf_names = [gguf_name(GGUF_NAMES[architecture], name) for name in weights]
        assert not [name for name in [*weights, *gguf_names] if is_leftover(name, config)]
    assert all(reason for _, reason in LEFTOVERS)


def test_a_fused_projection_of_wrong_height_is_refused(tmp_path: Path) -> None:
    config = hub_config("Phi3ForCausalLM")
    weights = hub_weights(config)
    changed = weights | {"model.layers.0.self_attn.qkv_proj.weight": np.zeros((63, WIDTH), np.float32)}
    with pytest.raises(CheckpointError, match=r"qkv_proj.weight has shape \[63, 32\], expected \[64, 32\]"):
        bind(
            write_hub(tmp_path, config, changed), canonical(weights, "Phi3ForCausalLM"), model_config("Phi3ForCausalLM")
        )


def test_an_architecture_without_names_is_refused_with_what_is_known(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM")
    weights = hub_weights(config)
    with pytest.raises(
        UnknownArchitectureError, match=r"safetensors of architecture 'FooForCausalLM'; known are Llama"
    ):
        bind(write_hub(tmp_path, config, weights), canonical(weights, ""), model_config("FooForCausalLM"))


def test_a_parameter_that_no_file_has_a_name_for_is_missing(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM")
    with (
        open_checkpoint(write_hub(tmp_path, config, hub_weights(config))) as checkpoint,
        pytest.raises(CheckpointError, match=r"magic\.weight \(no safetensors name is known for it\)"),
    ):
        bind_parameters(checkpoint, {"magic.weight": (1,)}, model_config("LlamaForCausalLM"))


def test_every_part_is_used_by_some_rule() -> None:
    used = {rule.part for file_format, name in _pairs() for rule in rules_for(file_format, name)}
    assert used == set(Part)


def _pairs() -> list[tuple[str, str]]:
    return [("safetensors", name) for name in GGUF_NAMES] + [("gguf", name) for name in GGUF_NAMES.values()]
