"""AWQ and GPTQ checkpoints: what the published layouts say, scalar by scalar, is what a tensor and its record mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.tiny_checkpoints import FFN, WIDTH, hub_config, hub_weights, write_hub
from trivium.base.errors import CheckpointError
from trivium.config.model import ModelConfig
from trivium.models import build_graph, parse_config
from trivium.weights.bind import Parameter, bind_parameters
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.codes import own_format
from trivium.weights.kinds import dequantize
from trivium.weights.verify import summarize
from trivium.weights.zero_points import METHODS, layout_of

Arrays = dict[str, np.ndarray]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": GPTQ,
    "gptq_v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "awq": AWQ,
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def random_pieces(kind: str, num_rows: int, depth: int, group_len: int, seed: int = 0) -> Arrays:
    """Random words and scales; GPTQ stores zero points less 1, so its nibbles are at most 14."""
    rng = np.random.default_rng(seed)
    shape = (depth, num_rows // 8) if kind == "awq" else (depth // 8, num_rows)
    zeros = rng.integers(0, 15 if kind == "gptq" else 16, (depth // group_len, num_rows // 8, 8), dtype=np.uint32)
    qzeros = np.zeros(zeros.shape[:2], np.uint32)
    for nibble in range(8):
        qzeros |= zeros[:, :, nibble] << np.uint32(4 * nibble)
    pieces = {
        "qweight": rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.int32),
        "qzeros": qzeros.view(np.int32),
        "scales": rng.uniform(-0.1, 0.1, (depth // group_len, num_rows)).astype(np.float16),
    }
    if kind != "awq":
        pieces["g_idx"] = (np.arange(depth) // group_len).astype(np.int32)
    return pieces


def by_hand(kind: str, pieces: Arrays, group_len: int) -> np.ndarray:
    """Decode one weight at a time from the published layouts, in Python's integers."""
    scales = pieces["scales"]
    qweight, qzeros = pieces["qweight"].view(np.uint32).tolist(), pieces["qzeros"].view(np.uint32).tolist()
    num_rows, depth = scales.shape[1], scales.shape[0] * group_len
    scale_of = scales.astype(np.float32).tolist()  # products with codes are exact, in Python's numbers and in float32
    weight = np.empty((num_rows, depth), np.float32)
    for n in range(num_rows):
        for k in range(depth):
            group = k // group_len
            if kind == "awq":
                shift = 4 * AWQ_ORDER.index(n % 8)
                code, zero = qweight[k][n // 8] >> shift & 15, qzeros[group][n // 8] >> shift & 15
            else:
                code = qweight[k // 8][n] >> (4 * (k % 8)) & 15
                zero = (qzeros[group][n // 8] >> (4 * (n % 8)) & 15) + (1 if kind == "gptq" else 0)
            weight[n, k] = (code - zero) * scale_of[group][n]
    return weight


def values(tmp_path: Path, kind: str, pieces: Arrays, **changes: Any) -> tuple[np.ndarray, np.ndarray, str]:
    """The tensor as float32, its record's meaning, and the record's format."""
    config = hub_config("LlamaForCausalLM", quantization_config=CONFIGS[kind] | changes)
    write_hub(tmp_path, config, {f"model.x.{name}": array for name, array in pieces.items()})
    with open_checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint.tensors["model.x.weight"]
        record = Parameter(tensor.name, tensor.shape, tensor, None, 0.0).codes(own_format(tensor))
        record.check()
        return tensor.float32(), dequantize(record), record.format


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    ("num_rows", "depth", "group_len", "panel_format"),
    [
        (8, 32, 32, "i4z_g32"),
        (40, 128, 64, "i4z_g64"),
        (16, 256, 128, "i4z_g128"),
        (24, 512, 256, "i4z_g128"),
        (16, 192, 96, "i4z_g32"),
    ],
)
def test_a_tensor_and_its_record_mean_what_the_layout_says(
    tmp_path: Path, kind: str, num_rows: int, depth: int, group_len: int, panel_format: str
) -> None:
    pieces = random_pieces(kind, num_rows, depth, group_len, seed=depth)
    expected = by_hand(kind, pieces, group_len)
    floats, meaning, record_format = values(tmp_path, kind, pieces, group_size=group_len)
    assert record_format == panel_format
    np.testing.assert_array_equal(floats, expected)
    np.testing.assert_array_equal(meaning, expected)


@pytest.mark.parametrize("kind", CONFIGS)
def test_group_size_minus_one_is_a_whole_row(tmp_path: Path, kind: str) -> None:
    pieces = random_pieces(kind, 16, 320, 320)
    floats, meaning, record_format = values(tmp_path, kind, pieces, group_size=-1)
    assert record_format == "i4z_g64"
    np.testing.assert_array_equal(floats, by_hand(kind, pieces, 320))
    np.testing.assert_array_equal(meaning, floats)


@pytest.mark.parametrize("kind", CONFIGS)
def test_rows_are_picked_from_within_words(tmp_path: Path, kind: str) -> None:
    pieces = random_pieces(kind, 32, 64, 32)
    expected = by_hand(kind, pieces, 32)
    config = hub_config("LlamaForCausalLM", quantization_config=CONFIGS[kind])
    write_hub(tmp_path, config, {f"model.x.{name}": array for name, array in pieces.items()})
    with open_checkpoint(tmp_path) as checkpoint:
        tensor = checkpoint.tensors["model.x.weight"]
        for rows in (slice(3, 21), np.array([31, 0, 9, 9], np.intp), slice(5, 6)):
            part = Parameter("p", (1, 1), tensor, rows, 0.0)
            np.testing.assert_array_equal(part.float32(), expected[rows])
            np.testing.assert_array_equal(dequantize(part.codes("i4z_g32")), expected[rows])
            np.testing.assert_array_equal(dequantize(part.codes("i4z_g32", 0, 1)), expected[rows][:1])
        np.testing.assert_array_equal(part.codes("f32").codes, expected[slice(5, 6)])


def test_a_zero_point_of_zero_that_borrowed_is_given_back(tmp_path: Path) -> None:
    pieces = random_pieces("gptq_v2", 16, 64, 32)
    pieces["qzeros"][:] = np.int32(0x50)
    stored = dict(pieces, qzeros=(pieces["qzeros"].view(np.uint32) - np.uint32(0x11111111)).view(np.int32))
    as_v1, _, _ = values(tmp_path / "v1", "gptq", stored)
    as_v2, _, _ = values(tmp_path / "v2", "gptq_v2", pieces)
    np.testing.assert_array_equal(as_v1, as_v2)
    np.testing.assert_array_equal(as_v2, by_hand("gptq_v2", pieces, 32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_scales_of_other_types_are_read_when_float16_holds_them(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes  # noqa: PLC0415, F401 - registers bfloat16

    pieces = random_pieces("gptq", 8, 64, 32)
    pieces["scales"] = np.array([[0.5, -0.25, 1.5, 2, 3, 4, 5, 6]] * 2, np.float32).astype(dtype)
    floats, meaning, _ = values(tmp_path / "exact", "gptq", pieces)
    np.testing.assert_array_equal(floats, by_hand("gptq", pieces, 32))
    np.testing.assert_array_equal(meaning, floats)
    pieces["scales"] = np.full((2, 8), 1e-30, np.float32).astype(dtype)
    with pytest.raises(CheckpointError, match=r"x\.scales: .* holds scales that are not float16 numbers"):
        values(tmp_path / "tiny", "gptq", pieces)


def quantized_model(architecture: str, kind: str, **changes: Any) -> tuple[dict[str, Any], Arrays, Arrays]:
    """A tiny model whose projections are quantized: configuration, tensors of the file, canonical values."""
    config = hub_config(architecture, quantization_config=CONFIGS[kind], **changes)
    plain = hub_weights(config)
    files: Arrays = {}
    expected: Arrays = {}
    for index, (name, array) in enumerate(plain.items()):
        if not name.endswith("_proj.weight"):
            files[name] = expected[name] = array.astype(np.float16)
            continue
        pieces = random_pieces(kind, *array.shape, 32, seed=index)
        files |= {name.replace("weight", piece): values for piece, values in pieces.items()}
        expected[name] = by_hand(kind, pieces, 32)
    return config, files, {name: values.astype(np.float32) for name, values in expected.items()}


def bound(directory: Path) -> tuple[dict[str, np.ndarray], ModelConfig, set[str]]:
    with open_checkpoint(directory) as checkpoint:
        config = parse_config(checkpoint.hf_config)
        found = bind_parameters(checkpoint, build_graph(config).param_shapes(), config)
        formats = {one.stored.format for one in found.values()}
        return {name: one.float32() for name, one in found.items()}, config, formats


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_quantized_checkpoint_binds_like_a_plain_one(tmp_path: Path, kind: str, num_shards: int) -> None:
    config, files, expected = quantized_model("Qwen2ForCausalLM", kind)
    write_hub(tmp_path, config, files, num_shards=num_shards)
    found, _, formats = bound(tmp_path)
    assert formats == {"F16", "AWQ" if kind == "awq" else "GPTQ"}
    assert found.keys() == {name.removeprefix("model.") for name in expected}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name.removeprefix("model.")], array, err_msg=name)


@pytest.mark.parametrize("kind", CONFIGS)
def test_fused_projections_are_split_by_rows(tmp_path: Path, kind: str) -> None:
    config, files, expected = quantized_model("Phi3ForCausalLM", kind, pad_token_id=0)
    write_hub(tmp_path, config, files)
    found, _, _ = bound(tmp_path)
    fused = expected["model.layers.1.mlp.gate_up_proj.weight"]
    np.testing.assert_array_equal(found["layers.1.mlp.gate_proj.weight"], fused[:FFN])
    np.testing.assert_array_equal(found["layers.1.mlp.up_proj.weight"], fused[FFN:])


def test_biases_of_zeros_that_no_layer_has_are_harmless_and_others_are_not(tmp_path: Path) -> None:
    config, files, _ = quantized_model("LlamaForCausalLM", "gptq")
    name = "model.layers.0.mlp.down_proj.bias"
    write_hub(tmp_path / "zeros", config, files | {name: np.zeros(WIDTH, np.float16)})
    bound(tmp_path / "zeros")
    write_hub(tmp_path / "ones", config, files | {name: np.ones(WIDTH, np.float16)})
    with pytest.raises(CheckpointError, match=r"nothing asks for: model\.layers\.0\.mlp\.down_proj\.bias"):
        bound(tmp_path / "ones")


def test_a_quantized_checkpoint_is_counted_by_its_pieces(tmp_path: Path) -> None:
    config, files, _ = quantized_model("LlamaForCausalLM", "awq")
    with open_checkpoint(write_hub(tmp_path, config, files)) as checkpoint:
        shares = summarize(checkpoint).formats
    assert shares["AWQ"].num_tensors == 14
    assert shares["AWQ"].num_bytes == sum(array.nbytes for name, array in files.items() if not name.endswith(".weight"))
    assert shares["AWQ"].num_parameters == 2 * shares["AWQ"].num_bytes / (1 + 2 * (2 + 0.5) / 32)


def test_the_fingerprint_follows_every_piece(tmp_path: Path) -> None:
    config, files, _ = quantized_model("LlamaForCausalLM", "gptq")
    prints = set()
    for changed in ("", "qweight", "qzeros", "scales"):
        name = f"model.layers.0.mlp.down_proj.{changed}"
        touched = {name: np.roll(files[name], 1)} if changed else {}
        with open_checkpoint(write_hub(tmp_path / f"x{changed}", config, files | touched)) as checkpoint:
            prints.add(checkpoint.fingerprint)
    assert len(prints) == 4


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("gptq", {"bits": 8}, "bits 8"),
        ("gptq", {"bits": None}, "bits None"),
        ("gptq", {"group_size": 48}, "group_size 48"),
        ("gptq", {"group_size": 16}, "group_size 16"),
        ("gptq", {"group_size": 0}, "group_size 0"),
        ("gptq", {"group_size": True}, "group_size True"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ("gptq", {"format": "bitblas"}, "format 'bitblas'"),
        ("gptq", {"is_marlin_format": True}, "is_marlin_format True"),
        ("gptq", {"pack_dtype": "int16"}, "pack_dtype 'int16'"),
        ("gptq", {"dynamic": {"lm_head": {"bits": 8}}}, "dynamic"),
        ("awq", {"bits": 3}, "bits 3"),
        ("awq", {"w_bit": 8}, "w_bit 8"),
        ("awq", {"version": "gemv"}, "version 'gemv'"),
        ("awq", {"version": "marlin"}, "version 'marlin'"),
        ("awq", {"zero_point": False}, "zero_point False"),
        ("awq", {"backend": "llm-awq"}, "backend 'llm-awq'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(kind: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        layout_of({"quantization_config": CONFIGS[kind] | changes}, "config.json")


@pytest.mark.parametrize("lacking", ["bits", "group_size"])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_layout_cannot_do_without_must_be_said(method: str, lacking: str) -> None:
    config = {key: value for key, value in CONFIGS[method].items() if key != lacking}
    with pytest.raises(CheckpointError, match=rf"quantization_config \({method}\) lacks {lacking}"):
        layout_of({"quantization_config": config}, "config.json")


@pytest.mark.parametrize("config", ["gptq", {"quant_method": ["gptq"]}, {"bits": 4}, [4]])
def test_a_malformed_quantization_config_is_refused(config: object) -> None:
    with pytest.raises(CheckpointError, match=r"quantization_config .* is not supported, only awq and gptq"):
        layout_of({"quantization_config": config}, "config.json")


def broken(change: str) -> Arrays:
    pieces = random_pieces("gptq", 16, 64, 32)
    if change == "act-order":
        pieces["g_idx"] = pieces["g_idx"][::-1].copy()
    elif change == "no scales":
        del pieces["scales"]
    elif change == "qzeros":
        pieces["qzeros"] = pieces["qzeros"][:1]
    elif change == "float words":
        pieces["qweight"] = pieces["qweight"].view(np.float32)
    elif change == "vector":
        pieces["scales"] = pieces["scales"][0]
    elif change == "odd rows":
        pieces["scales"] = pieces["scales"][:, :15].copy()
    elif change == "both":
        pieces["weight"] = np.zeros((16, 64), np.float16)
    return pieces


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("act-order", r"g_idx: columns were reordered \(act-order, desc_act\)"),
        ("no scales", r"qweight is in the checkpoint without model\.x\.scales"),
        ("qzeros", r"qzeros is I32 \[1, 2\], expected I32 \[2, 2\]"),
        ("float words", r"qweight is F32 .* expected I32"),
        ("vector", "is no matrix"),
        ("odd rows", "15 rows of 64 values"),
        ("both", r"model\.x\.qweight and model\.x\.weight are both in the checkpoint"),
    ],
)
def test_pieces_that_do_not_fit_are_refused_by_name(tmp_path: Path, change: str, named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        values(tmp_path, "gptq", broken(change))


def test_act_order_without_its_index_is_refused_and_with_an_ordered_one_read(tmp_path: Path) -> None:
    pieces = random_pieces("gptq", 16, 64, 32)
    floats, _, _ = values(tmp_path / "a", "gptq", pieces, desc_act=True)
    np.testing.assert_array_equal(floats, by_hand("gptq", pieces, 32))
    del pieces["g_idx"]
    with pytest.raises(CheckpointError, match=r"x\.g_idx is missing, though quantization_config says desc_act: true"):
        values(tmp_path / "b", "gptq", pieces, desc_act=True)
    floats, _, _ = values(tmp_path / "c", "gptq", pieces)
    np.testing.assert_array_equal(floats, by_hand("gptq", pieces, 32))
