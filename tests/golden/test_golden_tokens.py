"""Tokenizers built from GGUF files against the ids that transformers gives; see `tools/make_token_goldens.py`."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path

import pytest

from trivium.config.options import ModelOptions
from trivium.tokens.load import load_tokenizer_from_gguf
from trivium.tokens.tokenizer import Tokenizer
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.resolve import resolve_model

GOLDEN = Path(__file__).parent / "tokens"
NAMES = ["smollm2", pytest.param("gemma3-270m", marks=pytest.mark.soak)]
SLOWEST_BUILD_S = 10.0


@cache
def built(name: str) -> tuple[Tokenizer, float]:
    checkpoint = open_checkpoint(resolve_model(ModelOptions(model=name)).path)
    began_s = time.process_time()
    tokenizer = load_tokenizer_from_gguf(checkpoint.metadata)
    took_s = time.process_time() - began_s
    checkpoint.close()
    return tokenizer, took_s


def rows_of(name: str) -> list[tuple[str, list[int]]]:
    rows = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return [(row["text"], row["ids"]) for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(name: str) -> None:
    tokenizer, _ = built(name)
    texts, ids = zip(*rows_of(name), strict=True)
    assert tokenizer.encode_batch(texts, add_special_tokens=False) == list(ids)


@pytest.mark.parametrize("name", NAMES)
def test_ids_join_to_the_text_they_came_from(name: str) -> None:
    tokenizer, _ = built(name)
    for text, ids in rows_of(name):
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", NAMES)
def test_building_takes_seconds_of_a_core(name: str) -> None:
    assert built(name)[1] < SLOWEST_BUILD_S


def test_smollm2_knows_the_byte_0x80_as_id_218() -> None:
    assert built("smollm2")[0].token_bytes(218) == b"\x80"


@pytest.mark.soak
def test_gemma_puts_its_begin_token_first() -> None:
    tokenizer, _ = built("gemma3-270m")
    assert tokenizer.encode("The capital of France is", add_special_tokens=True) == [2, 818, 5279, 529, 7001, 563]
