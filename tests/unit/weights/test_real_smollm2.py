"""The default model's real file, where it is in the cache: it opens fast, binds whole, and is what was pinned."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from trivium.base.errors import ModelError
from trivium.config.options import ModelOptions
from trivium.weights.checkpoint import Checkpoint, open_checkpoint
from trivium.weights.resolve import resolve_model
from trivium.weights.verify import summarize


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    try:
        resolved = resolve_model(ModelOptions(model="smollm2", offline=True))
    except ModelError as error:
        pytest.skip(f"smollm2 is not in the cache: {error}")
    with open_checkpoint(resolved.path) as opened:
        yield opened


def test_it_has_the_shape_that_is_published(checkpoint: Checkpoint) -> None:
    config = checkpoint.hf_config
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    assert [config[name] for name in names] == [576, 30, 9, 3, 64, 49152]
    assert (config["tie_word_embeddings"], config["max_position_embeddings"]) == (True, 8192)
    summary = summarize(checkpoint)
    assert (summary.num_tensors, summary.num_parameters) == (272, 134_515_008)
    assert list(summary.formats) == ["Q4_1", "Q8_0", "F32"]


def test_it_opens_and_dequantizes_within_seconds(checkpoint: Checkpoint) -> None:
    started = time.process_time()
    open_checkpoint(checkpoint.path).close()
    assert time.process_time() - started < 2.0  # about 0.05 s on an idle core
    started = time.process_time()
    assert sum(tensor.float32().size for tensor in checkpoint.tensors.values()) == 134_515_008
    assert time.process_time() - started < 10.0  # about 0.3 s on two idle cores


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"])
def test_its_tensors_are_those_of_the_gguf_library(checkpoint: Checkpoint, name: str) -> None:
    stored = checkpoint.tensors[name]
    packed = stored.raw().reshape(stored.shape[0], -1)
    expected = quants.dequantize(packed, GGMLQuantizationType[stored.format]).reshape(stored.shape)
    np.testing.assert_array_equal(stored.float32(), expected)
