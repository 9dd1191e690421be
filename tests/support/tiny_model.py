"""A whole tiny model in a directory: random Llama weights, a byte-level tokenizer, a chat template.

Everything that starts from a path (server, `LLM`, command line) runs on it in a fraction of a second. Its answers are
noise, but the same noise every time.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL) + 5
"""The last five ids of the model have no token."""
WIDTH, FFN, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS = 32, 48, 4, 2, 8, 2
MAX_POSITIONS = 512
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    window: int | None = None,
    num_layers: int = LAYERS,
    max_positions: int = MAX_POSITIONS,
) -> Path:
    """Write the model and return its directory; a window makes it Mistral with sliding-window attention."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_config(directory, window, num_layers, max_positions)
    save_file(_weights(seed, num_layers), directory / "model.safetensors")
    _write_tokenizer(directory)
    return directory


def _write_config(directory: Path, window: int | None, num_layers: int, max_positions: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM" if window is None else "MistralForCausalLM"],
        "model_type": "llama" if window is None else "mistral",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": num_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "vocab_size": VOCAB,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if window is not None:
        config["sliding_window"] = window
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "bos_token_id": 1}))


def _weights(seed: int, num_layers: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    query, key = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    per_layer = {
        "self_attn.q_proj": (query, WIDTH),
        "self_attn.k_proj": (key, WIDTH),
        "self_attn.v_proj": (key, WIDTH),
        "self_attn.o_proj": (WIDTH, query),
        "mlp.gate_proj": (FFN, WIDTH),
        "mlp.up_proj": (FFN, WIDTH),
        "mlp.down_proj": (WIDTH, FFN),
    }
    shapes = {"model.embed_tokens.weight": (VOCAB, WIDTH), "lm_head.weight": (VOCAB, WIDTH)}
    norms = ["model.norm.weight"]
    for layer in range(num_layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in per_layer.items()}
        norms += [f"model.layers.{layer}.{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")]
    weights = {
        name: (rng.standard_normal(shape) * 1.5 / np.sqrt(shape[1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    return weights | {name: np.ones(WIDTH, np.float32) for name in norms}


def _write_tokenizer(directory: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: idx for idx, text in enumerate((*SPECIAL, *letters))}
    encoder = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens(list(SPECIAL))
    encoder.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "unk_token": SPECIAL[0],
            "add_bos_token": False,
            "chat_template": TEMPLATE,
            "tokenizer_class": "GPT2Tokenizer",
        })
    )
