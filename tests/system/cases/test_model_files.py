"""Model files that are broken, spelled another way, or hostile, given to a real server (cases G01 to G05, I06)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from support.case_checks import assert_never_serves, assert_refused, raw_body
from support.server_process import smollm2_or_skip
from support.tiny_checkpoints import hub_config, hub_weights, write_gguf
from support.tiny_model import write_tiny_model
from support.tiny_server import tiny_server
from trivium.base.errors import TriviumError
from trivium.config.options import ModelOptions
from trivium.tokens.chat import find_template
from trivium.tokens.load import load_tokenizer, load_tokenizer_from_gguf
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.resolve import resolve_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model")


def change_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def split_in_three(model: Path) -> list[Path]:
    """Write the weights as three shards with an index instead of one file."""
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    shard_of = {name: shards[idx % 3] for idx, name in enumerate(sorted(weights))}
    for shard in shards:
        save_file({name: weights[name] for name in weights if shard_of[name] == shard}, model / shard)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))
    return [model / shard for shard in shards]


def test_g01_a_shard_that_is_cut_short_is_never_served(model: Path) -> None:
    shard = split_in_three(model)[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-1000])
    assert_never_serves(model, shard.name, str(len(content)), str(len(content) - 1000))


def test_g01_a_shard_that_is_missing_is_never_served(model: Path) -> None:
    shard = split_in_three(model)[2]
    shard.unlink()
    assert_never_serves(model, shard.name, "missing")


def test_g01_a_header_longer_than_its_file_is_never_served(model: Path) -> None:
    shard = split_in_three(model)[0]
    content = shard.read_bytes()
    shard.write_bytes((1 << 40).to_bytes(8, "little") + content[8:])
    assert_never_serves(model, shard.name, str(1 << 40), str(len(content)))


def scores(model: Path) -> Any:
    with tiny_server(model=model) as server:
        body = server.complete(prompt=[5, 70, 9, 200], echo=True, logprobs=5, max_tokens=3, ignore_eos=True).json()
    return body["choices"][0]["logprobs"]


def test_g02_a_tied_head_is_the_embedding(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    save_file(weights, model / "model.safetensors")
    expected = scores(model)
    del weights["lm_head.weight"]
    save_file(weights, model / "model.safetensors")
    change_config(model, tie_word_embeddings=True)
    assert scores(model) == expected


@pytest.mark.parametrize("is_tied", [False, True])
def test_g02_a_model_without_head_and_embedding_is_refused_by_the_tensors_name(model: Path, is_tied: bool) -> None:
    weights = load_file(model / "model.safetensors")
    kept = {name: values for name, values in weights.items() if "lm_head" not in name and "embed" not in name}
    save_file(kept, model / "model.safetensors")
    change_config(model, tie_word_embeddings=is_tied)
    assert_never_serves(model, "embed_tokens.weight")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_g03_an_unknown_kind_of_rope_is_never_served(model: Path, key: str) -> None:
    change_config(model, **{key: {"rope_type": "spiral", "factor": 2.0}})
    assert_never_serves(model, "spiral")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_g03_yarn_raises_the_context_that_is_served(model: Path, key: str) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    change_config(model, **{key: yarn})
    with tiny_server(model=model) as server:
        assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 4 * 512
        assert server.complete(prompt=[70] * 600, max_tokens=1).status_code == 200


HALVES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "magic": (lambda good: b"GGML" + good[4:], "magic"),
    "half": (lambda good: good[: len(good) // 2], "truncated"),
    "count": (lambda good: good[:8] + (1 << 60).to_bytes(8, "little") + good[16:], "tensor count"),
}


@pytest.mark.parametrize("fault", HALVES)
def test_g04_a_malformed_gguf_file_is_never_served(tmp_path: Path, fault: str) -> None:
    config = hub_config("LlamaForCausalLM")
    path = write_gguf(tmp_path / "bad.gguf", config, hub_weights(config))
    change, word = HALVES[fault]
    path.write_bytes(change(path.read_bytes()))
    assert_never_serves(path, "bad.gguf", word)


TEXTS = [
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\n",
    "Hello world! Café déjà vu — 123 😊",
    "    \t",
    "    \tx    y\t\n\n  z",
    "<think>so 2024</think> a<think>b <think> <|im_end|><|endoftext|>",
    "In 1999, 3.14159 + 2²",
]


def converted(metadata: dict[str, Any], directory: Path) -> Path:
    """Write the tokenizer.json that this GGUF metadata converts to, with the library alone."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocab = {token: idx for idx, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    encoder = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    cut = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    encoder.pre_tokenizer = pre_tokenizers.Sequence(cut)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    written = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 4]
    encoder.add_tokens([AddedToken(token, normalized=False) for token in written])
    encoder.save(str(directory / "tokenizer.json"))
    return directory


def test_g05_a_gguf_file_and_its_tokenizer_json_give_the_same_ids(tmp_path: Path) -> None:
    with open_checkpoint(resolve_model(ModelOptions(model=smollm2_or_skip())).path) as checkpoint:
        metadata = dict(checkpoint.metadata)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4]
    from_gguf, from_json = load_tokenizer_from_gguf(metadata), load_tokenizer(converted(metadata, tmp_path))
    think = len(metadata["tokenizer.ggml.tokens"]) - 1
    for text in TEXTS:
        ids = from_gguf.encode(text, add_special_tokens=False)
        assert ids == from_json.encode(text, add_special_tokens=False)
        assert ids.count(think) == text.count("<think>")
    assert from_gguf.encode(TEXTS[0], add_special_tokens=False)[0] == 1


ESCAPES = {
    "globals": "{{ cycler.__init__.__globals__.os.popen('touch PATH').read() }}",
    "subclasses": "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{% if 'Popen' in c.__name__ %}"
    "{{ c(['touch', 'PATH']) }}{% endif %}{% endfor %}",
    "filter": "{{ (''|attr('__class__')).mro()[1].__subclasses__() }}",
    "builtins": "{{ self.__init__.__globals__.__builtins__.open('PATH', 'w') }}",
    "include": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("escape", ["globals", "builtins"])
def test_i06_a_template_that_reaches_for_the_machine_reaches_nothing(model: Path, tmp_path: Path, escape: str) -> None:
    mark = tmp_path / "was-here"
    template = ESCAPES[escape].replace("PATH", str(mark))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    with tiny_server(model=model) as server:
        body = raw_body({"model": '"tiny"', "messages": '[{"role": "user", "content": "hi"}]'})
        error = assert_refused(server, "/v1/chat/completions", body, names="template")
        assert "subclasses" not in error["message"]
        assert "root:" not in error["message"]
        server.assert_alive()
    assert not mark.exists()


@pytest.mark.parametrize("escape", ESCAPES)
def test_i06_the_template_of_a_gguf_file_is_no_freer(model: Path, tmp_path: Path, escape: str) -> None:
    mark = tmp_path / "was-here"
    metadata = {"tokenizer.chat_template": ESCAPES[escape].replace("PATH", str(mark))}
    tokenizer = load_tokenizer(model)
    with pytest.raises(TriviumError):
        find_template(override=None, directory=None, metadata=metadata, tokenizer=tokenizer).render([
            {"role": "user", "content": "hi"}
        ])
    assert not mark.exists()
