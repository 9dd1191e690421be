"""Safetensors checkpoints: read as the library reads them; every fault names file, expected and real size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from support.tiny_checkpoints import hub_config, hub_weights, write_hub
from trivium.base.errors import CheckpointError, InternalError
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.mapped import MappedFile
from trivium.weights.safetensors import read_header

CONFIG = hub_config("LlamaForCausalLM")


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    return hub_weights(CONFIG)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_tensors_come_back_as_they_were_saved(tmp_path: Path, weights: dict[str, np.ndarray], num_shards: int) -> None:
    write_hub(tmp_path, CONFIG, weights, num_shards=num_shards)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert checkpoint.hf_config == CONFIG
        assert checkpoint.tensors.keys() == weights.keys()
        for name, values in weights.items():
            np.testing.assert_array_equal(checkpoint.tensors[name].float32(), values)


@pytest.mark.parametrize(("name", "dtype"), [("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_half_formats_are_widened_exactly(tmp_path: Path, name: str, dtype: Any) -> None:
    values = np.random.default_rng(0).standard_normal((6, 4), np.float32).astype(dtype)
    save_file({"x": values}, tmp_path / "x.safetensors")
    stored = read_header(MappedFile(tmp_path / "x.safetensors"))["x"]
    assert (stored.format, stored.shape, stored.num_bytes) == (name, (6, 4), 48)
    np.testing.assert_array_equal(stored.float32(), values.astype(np.float32))


def test_only_the_asked_rows_are_returned_in_the_asked_order(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    save_file({"x": values}, tmp_path / "x.safetensors")
    stored = read_header(MappedFile(tmp_path / "x.safetensors"))["x"]
    np.testing.assert_array_equal(stored.float32(slice(2, 5)), values[2:5])
    np.testing.assert_array_equal(stored.float32(np.array([5, 0, 3])), values[[5, 0, 3]])


def test_generation_config_is_read_when_it_is_there(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    write_hub(tmp_path, CONFIG, weights)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5}')
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.generation_config == {"temperature": 0.5}


# --- faults -----------------------------------------------------------------------------------------------------


def safetensors_file(path: Path, header: Any, data: bytes = b"", *, header_len: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if header_len is None else header_len
    path.write_bytes(length.to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, *, dtype: str = "F32", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


DATA = bytes(16)
FAULTS: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{oops", DATA, "header is not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', DATA, "header is not valid JSON"),
    "an array": ([1, 2], DATA, "header is a JSON list"),
    "deeply nested": (b"[" * 100_000, DATA, "header is not valid JSON"),
    "a name twice": (b'{"a": 1, "a": 2}', DATA, "a name appears twice"),
    "no entry": ({"a": 5}, DATA, "tensor 'a': its header entry is not an object"),
    "unknown dtype": ({"a": entry(0, 16, dtype="Q4_0")}, DATA, "dtype 'Q4_0' is not known"),
    "negative dimension": ({"a": entry(0, 16, shape=[-4])}, DATA, "shape .* is not a list of whole numbers"),
    "huge dimension": ({"a": entry(0, 16, shape=[2**62, 2**62])}, DATA, "takes .* bytes, its range has 16"),
    "boolean dimension": ({"a": entry(0, 16, shape=[True])}, DATA, "shape .* is not a list of whole numbers"),
    "one offset": ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0]}}, DATA, "data_offsets has 1 numbers"),
    "size differs": ({"a": entry(0, 12, shape=[4])}, DATA, "takes 16 bytes, its range has 12"),
    "beyond the end": ({"a": entry(0, 64)}, DATA, "expected .* bytes in the file, it has .* truncated"),
    "overlap": ({"a": entry(0, 12), "b": entry(8, 16)}, DATA, "tensor 'b' overlaps the one before"),
    "hole": ({"a": entry(0, 4), "b": entry(8, 16)}, DATA, "tensor 'b' follows a hole"),
    "trailing bytes": ({"a": entry(0, 12)}, DATA, "expected .* bytes, the file has"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_header_is_one_line_that_names_the_file(tmp_path: Path, fault: str) -> None:
    header, data, message = FAULTS[fault]
    path = safetensors_file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_header(MappedFile(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header_len", [17, 1 << 62])
def test_a_header_longer_than_the_file_is_refused_with_both_sizes(tmp_path: Path, header_len: int) -> None:
    path = safetensors_file(tmp_path / "x.safetensors", b"{}", bytes(14), header_len=header_len)
    with pytest.raises(CheckpointError, match=f"header length {header_len} bytes does not fit: the file has 24 bytes"):
        read_header(MappedFile(path))


def test_a_file_shorter_than_its_header_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"abc")
    with pytest.raises(CheckpointError, match="expected at least 8 bytes of header length, the file has 3"):
        read_header(MappedFile(tmp_path / "x.safetensors"))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").touch()
    with pytest.raises(CheckpointError, match="the file is empty"):
        MappedFile(tmp_path / "x.safetensors")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_header_bytes_end_in_tensors_or_a_clear_error(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    header = {f"t{i}": entry(16 * i, 16 * (i + 1)) for i in range(8)}
    path = safetensors_file(tmp_path / "x.safetensors", header, DATA * 8)
    content = bytearray(path.read_bytes())
    for position, value in changes:
        content[position] = value
    path.write_bytes(content)
    message = ""
    try:
        for stored in read_header(MappedFile(path)).values():
            assert stored.raw().size == stored.num_bytes
    except CheckpointError as error:
        message = str(error)
    assert "\n" not in message


def test_a_missing_shard_is_named(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    write_hub(tmp_path, CONFIG, weights, num_shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"files that are missing from .*: model-00002-of-00003\.safetensors"):
        open_checkpoint(tmp_path)


def edit_index(directory: Path, **changes: str) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"].update(changes)
    path.write_text(json.dumps(index))


def test_an_index_that_places_a_tensor_in_the_wrong_shard_is_refused(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    write_hub(tmp_path, CONFIG, weights, num_shards=3)
    edit_index(tmp_path, ghost="model-00001-of-00003.safetensors")
    with pytest.raises(CheckpointError, match="holds tensors it does not: ghost"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "weights.bin", ""])
def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, weights: dict[str, np.ndarray], shard: str) -> None:
    write_hub(tmp_path, CONFIG, weights, num_shards=2)
    edit_index(tmp_path, ghost=shard)
    with pytest.raises(CheckpointError, match=r"is not the name of a \.safetensors file beside the index"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=f"{name}: pickled weights can run code"):
        open_checkpoint(tmp_path)


def test_a_directory_without_weights_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"no weights: expected model.safetensors or model.safetensors.index.json"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000])
def test_a_broken_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("method", ["fp8", "bitsandbytes", "compressed-tensors"])
def test_a_checkpoint_quantized_in_another_way_is_refused_by_its_method(
    tmp_path: Path, weights: dict[str, np.ndarray], method: str
) -> None:
    write_hub(tmp_path, CONFIG | {"quantization_config": {"quant_method": method}}, weights)
    with pytest.raises(CheckpointError, match=rf"quantization_config \({method}\) is not supported, only awq and gptq"):
        open_checkpoint(tmp_path)


def test_other_files_and_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"x")
    (tmp_path / "x.txt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pass the directory that holds it"):
        open_checkpoint(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="not a directory in Hugging Face layout"):
        open_checkpoint(tmp_path / "x.txt")
    with pytest.raises(CheckpointError, match="no such file or directory"):
        open_checkpoint(tmp_path / "nothing")


def test_the_fingerprint_follows_the_contents_and_the_configuration(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    def fingerprint(directory: Path) -> str:
        with open_checkpoint(directory) as checkpoint:
            return checkpoint.fingerprint

    original = fingerprint(write_hub(tmp_path / "a", CONFIG, weights))
    assert fingerprint(write_hub(tmp_path / "b", CONFIG, weights)) == original
    assert fingerprint(write_hub(tmp_path / "c", CONFIG, weights, num_shards=2)) == original
    assert fingerprint(write_hub(tmp_path / "d", CONFIG | {"rope_theta": 5.0}, weights)) != original
    changed = dict(weights) | {"model.norm.weight": weights["model.norm.weight"] + 1}
    assert fingerprint(write_hub(tmp_path / "e", CONFIG, changed)) != original


def test_reading_after_close_is_an_error_of_ours(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    checkpoint = open_checkpoint(write_hub(tmp_path, CONFIG, weights))
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(InternalError, match=r"model\.safetensors is read after its checkpoint was closed"):
        checkpoint.tensors["model.norm.weight"].float32()


def test_a_view_outlives_the_checkpoint_it_came_from(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    with open_checkpoint(write_hub(tmp_path, CONFIG, weights)) as checkpoint:
        view = checkpoint.tensors["model.norm.weight"].raw()
    np.testing.assert_array_equal(view.view(np.float32), weights["model.norm.weight"])
