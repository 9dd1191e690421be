"""LoRA adapters as peft saves them: what they mean, and what is refused by name before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from support.tiny_adapters import PREFIX, Tensors, adapter_tensors, module_shapes, write_adapter
from support.tiny_checkpoints import FFN, HEAD_WIDTH, HEADS, KV_HEADS, LAYERS, VOCAB, WIDTH, hub_config
from trivium.base.errors import CheckpointError
from trivium.models import build_graph, parse_config
from trivium.weights.peft import PeftAdapter, read_peft

CONFIG = hub_config("LlamaForCausalLM")
TIED = hub_config("LlamaForCausalLM", tie_word_embeddings=True)
PHI3 = hub_config("Phi3ForCausalLM")


def read(folder: Path, config: dict[str, Any] = CONFIG, *, max_rank: int = 16) -> PeftAdapter:
    parsed = parse_config(config)
    graph = build_graph(parsed)
    shapes = graph.param_shapes()
    names = {node.inputs[1] for node in graph.nodes if node.op == "gemm"}
    products = {str(name): (shapes[str(name)][0], shapes[str(name)][1]) for name in names}
    return read_peft(folder, products, parsed, max_rank=max_rank)


def refusal(folder: Path, config: dict[str, Any] = CONFIG, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(folder, config, **options)
    return str(caught.value)


def test_every_projection_of_every_layer_is_read_as_it_was_saved(tmp_path: Path) -> None:
    modules = [name.split(".")[1] for name in module_shapes(CONFIG)]
    tensors = adapter_tensors(CONFIG, modules=modules)
    found = read(write_adapter(tmp_path, CONFIG, tensors=tensors, target_modules=modules))
    assert found.rank == 4
    assert found.base_model == "tiny"
    assert len(found.products) == 7 * LAYERS
    for name, one in found.products.items():
        at = f"{PREFIX}{name.removesuffix('.weight')}"
        np.testing.assert_array_equal(one.a, tensors[f"{at}.lora_A.weight"])
        np.testing.assert_array_equal(one.b, tensors[f"{at}.lora_B.weight"])
        assert one.scale == 2.0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened(tmp_path: Path, dtype: type) -> None:
    tensors = {name: value.astype(dtype) for name, value in adapter_tensors(CONFIG).items()}
    found = read(write_adapter(tmp_path, CONFIG, tensors=tensors)).products["layers.1.self_attn.q_proj.weight"]
    assert found.a.dtype == np.float32
    wanted = tensors[f"{PREFIX}layers.1.self_attn.q_proj.lora_A.weight"].astype(np.float32)
    np.testing.assert_array_equal(found.a, wanted)


SCALES = (
    ({"lora_alpha": 6}, 1.5),
    ({"lora_alpha": 6, "use_rslora": True}, 3.0),
    ({"alpha_pattern": {"q_proj": 2}}, 0.5),
    ({"alpha_pattern": {"layers.0.self_attn.q_proj": 2}}, 0.5),
    ({"alpha_pattern": {r"layers.\d+.self_attn.q_proj": 2}}, 0.5),
    ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2}}, 0.5),
    ({"alpha_pattern": {"^layers.0.self_attn.q_proj": 2}}, 2.0),
    ({"alpha_pattern": {"layers.1.self_attn.q_proj": 2, "proj": 1}}, 2.0),
    ({"alpha_pattern": {"v_proj": 1, "q_proj": 2, r"\d+.self_attn.q_proj": 3}}, 0.5),
)


@pytest.mark.parametrize(("says", "scale"), SCALES)
def test_the_scale_is_alpha_over_rank_as_patterns_say(tmp_path: Path, says: dict[str, Any], scale: float) -> None:
    found = read(write_adapter(tmp_path, CONFIG, **says))
    assert found.products["layers.0.self_attn.q_proj.weight"].scale == pytest.approx(scale)


def test_ranks_may_differ_from_module_to_module(tmp_path: Path) -> None:
    wide = adapter_tensors(CONFIG, rank=9)
    tensors = {**adapter_tensors(CONFIG), **{name: value for name, value in wide.items() if "q_proj" in name}}
    found = read(write_adapter(tmp_path, CONFIG, tensors=tensors, rank_pattern={"q_proj": 9}))
    assert found.rank == 9
    assert found.products["layers.0.self_attn.q_proj.weight"].scale == pytest.approx(8 / 9)
    assert found.products["layers.0.self_attn.v_proj.weight"].scale == pytest.approx(2.0)
    assert "want [4, 32] and [32, 4]" in refusal(write_adapter(tmp_path / "unsaid", CONFIG, tensors=tensors))


def test_fused_projections_share_a_and_take_their_rows_of_b(tmp_path: Path) -> None:
    query, key = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    random = np.random.default_rng(0)
    shapes = {"self_attn.qkv_proj": query + 2 * key, "mlp.gate_up_proj": 2 * FFN}
    tensors: Tensors = {}
    for layer in range(LAYERS):
        for name, num_cols in shapes.items():
            at = f"{PREFIX}layers.{layer}.{name}"
            tensors[f"{at}.lora_A.weight"] = random.standard_normal((4, WIDTH), np.float32)
            tensors[f"{at}.lora_B.weight"] = random.standard_normal((num_cols, 4), np.float32)
    found = read(write_adapter(tmp_path, PHI3, tensors=tensors, target_modules=["qkv_proj", "gate_up_proj"]), PHI3)
    whole = tensors[f"{PREFIX}layers.1.self_attn.qkv_proj.lora_B.weight"]
    parts = [found.products[f"layers.1.self_attn.{name}_proj.weight"] for name in "qkv"]
    np.testing.assert_array_equal(np.concatenate([part.b for part in parts]), whole)
    assert len({part.a.tobytes() for part in parts}) == 1
    halves = [found.products[f"layers.0.mlp.{name}_proj.weight"].b for name in ("gate", "up")]
    np.testing.assert_array_equal(np.concatenate(halves), tensors[f"{PREFIX}layers.0.mlp.gate_up_proj.lora_B.weight"])


@pytest.mark.parametrize(("config", "parameter"), [(CONFIG, "lm_head.weight"), (TIED, "embed_tokens.weight")])
def test_the_head_is_a_product_also_where_it_is_tied(tmp_path: Path, config: dict[str, Any], parameter: str) -> None:
    tensors = {
        "base_model.model.lm_head.lora_A.weight": np.ones((4, WIDTH), np.float32),
        "base_model.model.lm_head.lora_B.weight": np.ones((VOCAB, 4), np.float32),
        "base_model.model.lm_head.base_layer.weight": np.zeros((VOCAB, WIDTH), np.float32),
    }
    found = read(write_adapter(tmp_path, config, tensors=tensors, target_modules=["lm_head"]), config)
    assert list(found.products) == [parameter]
    grown = {**tensors, "base_model.model.lm_head.base_layer.weight": np.zeros((VOCAB + 1, WIDTH), np.float32)}
    told = refusal(write_adapter(tmp_path, config, tensors=grown, target_modules=["lm_head"]), config)
    assert "lm_head.base_layer.weight" in told


def test_a_multimodal_bases_text_part_is_found_under_its_prefixes(tmp_path: Path) -> None:
    for prefix in ("model.language_model.", "language_model.model."):
        tensors = {
            name.replace(PREFIX, f"base_model.model.{prefix}"): value for name, value in adapter_tensors(CONFIG).items()
        }
        assert len(read(write_adapter(tmp_path, CONFIG, tensors=tensors)).products) == 2 * LAYERS


REFUSED = (
    ({"peft_type": "LOHA"}, "peft_type is LOHA; only LORA adapters can be loaded"),
    ({"peft_type": None}, "peft_type is None"),
    ({"use_dora": True}, "use_dora is True: DoRA scales the base weights themselves"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head']: it brings whole modules of its own"),
    ({"bias": "lora_only"}, "bias is lora_only: trained biases are not supported"),
    ({"lora_bias": True}, "lora_bias is True"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is [1]"),
    ({"target_parameters": ["experts.w1"]}, "target_parameters"),
    ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
    ({"alora_invocation_tokens": [3, 4]}, "alora_invocation_tokens"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is pissa: it changes the base weights"),
    ({"use_qalora": True}, "use_qalora is True: what that key means for the weights is not known here"),
    ({"something_new": {"a": 1}}, "something_new is {'a': 1}: what that key means"),
    ({"r": 0}, "r is 0; a rank is a whole number from 1"),
    ({"r": "8"}, "r is 8; a rank is a whole number"),
    ({"r": 17}, "rank 17 is more than max_lora_rank, 16"),
    ({"rank_pattern": {"q_proj": 20}}, "rank 20 is more than max_lora_rank, 16"),
    ({"rank_pattern": {"(a+)+": 2}}, "rank_pattern has the key '(a+)+'; keys may be names of modules"),
    ({"rank_pattern": [1]}, "rank_pattern is [1]; it must be an object"),
    ({"lora_alpha": "x"}, "lora_alpha is x; it must be a number"),
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    ({"use_rslora": "yes"}, "use_rslora is yes; it must be true or false"),
    ({"target_modules": {"a": 1}}, "target_modules is {'a': 1}; it must be a list"),
    ({"target_modules": ["q_proj", "v_proj", "up_proj"]}, "no weights of modules that target_modules names: up_proj"),
)


@pytest.mark.parametrize(("says", "message"), REFUSED)
def test_what_the_configuration_asks_for_and_is_not_done_is_refused_by_name(
    tmp_path: Path, says: dict[str, Any], message: str
) -> None:
    assert message in refusal(write_adapter(tmp_path, CONFIG, **says))


def test_harmless_keys_and_empty_ones_are_taken(tmp_path: Path) -> None:
    says = {"lora_dropout": 0.1, "inference_mode": True, "modules_to_save": None, "use_dora": False, "rank_pattern": {},
            "init_lora_weights": "gaussian", "loftq_config": {}, "some_later_key": None}  # fmt: skip
    assert read(write_adapter(tmp_path, CONFIG, **says)).products


def renamed(old: str, new: str) -> Tensors:
    return {name.replace(old, new): value for name, value in adapter_tensors(CONFIG).items()}


BAD_TENSORS = (
    (renamed("base_model.model.", ""), "fit no module of LlamaForCausalLM with 2 layers: model.layers.0"),
    (renamed("layers.1", "layers.7"), "layers.7.self_attn.q_proj.lora_A.weight"),
    (renamed("q_proj", "wq"), "was it trained on another base?"),
    (renamed("q_proj.lora_B", "q_proj.lora_magnitude_vector"), "lora_magnitude_vector"),
    ({}, "has no LoRA weights"),
    (
        {name: value for name, value in adapter_tensors(CONFIG).items() if "0.self_attn.q_proj.lora_B" not in name},
        "halves without their other half: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    ),
    (adapter_tensors({**CONFIG, "hidden_size": 40, "head_dim": 8}), "has A [4, 40] and B [32, 4]"),
    (adapter_tensors(CONFIG, rank=5), "has A [5, 32]"),
    (
        {f"{PREFIX}embed_tokens.lora_embedding_A": np.ones((4, VOCAB), np.float32)},
        "adapters of the embedding that tokens are looked up in are not supported",
    ),
)


@pytest.mark.parametrize(("tensors", "message"), BAD_TENSORS)
def test_weights_that_do_not_fit_are_listed(tmp_path: Path, tensors: Tensors, message: str) -> None:
    assert message in refusal(write_adapter(tmp_path, CONFIG, tensors=tensors))


def test_missing_pickled_truncated_and_malformed_files_are_named(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(tmp_path / "nowhere")
    folder = write_adapter(tmp_path / "good", CONFIG)
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "the file is truncated" in refusal(folder)
    weights.write_bytes(b"")
    assert "the file is empty" in refusal(folder)
    weights.unlink()
    assert "adapter_model.safetensors: there is no such file" in refusal(folder)
    (folder / "adapter_model.bin").write_bytes(b"x")
    assert "pickled weights can run code" in refusal(folder)
    for content, message in ((b"{", "not valid JSON"), (b"[]", "a JSON list, it must be an object")):
        (folder / "adapter_config.json").write_bytes(content)
        assert message in refusal(folder)
    (folder / "adapter_config.json").unlink()
    assert "adapter_config.json: cannot be read" in refusal(folder)


def test_a_file_that_no_adapter_can_be_as_large_as_is_not_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, CONFIG)
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1 << 33)
    assert "an adapter for this model of rank 16 or less has at most" in refusal(folder)


def test_every_byte_of_both_files_is_in_the_fingerprint(tmp_path: Path) -> None:
    first = read(write_adapter(tmp_path, CONFIG, seed=1)).fingerprint
    assert read(write_adapter(tmp_path, CONFIG, seed=1)).fingerprint == first
    assert read(write_adapter(tmp_path, CONFIG, seed=2)).fingerprint != first
    assert read(write_adapter(tmp_path, CONFIG, seed=1, lora_alpha=9)).fingerprint != first


def test_a_file_that_is_overwritten_later_changes_nothing_that_was_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, CONFIG)
    one = read(folder).products["layers.0.self_attn.q_proj.weight"]
    before = one.a.copy()
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(10)
    np.testing.assert_array_equal(one.a, before)


def test_the_configuration_is_read_as_text_only(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, CONFIG)
    (folder / "adapter_config.json").write_bytes(b" " * (5 << 20) + json.dumps({}).encode())
    assert "larger than 4.00 MiB" in refusal(folder)
    save_file({}, folder / "adapter_model.safetensors")
