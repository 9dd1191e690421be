"""GGUF headers: read as the gguf package wrote them; a malformed one is one line that names the field."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.tiny_checkpoints import hub_config, hub_weights, write_gguf
from trivium.base.errors import CheckpointError, ModelError
from trivium.weights.checkpoint import open_checkpoint
from trivium.weights.gguf_header import GGUFHeader, read_gguf_header
from trivium.weights.mapped import MappedFile

CONFIG = hub_config("LlamaForCausalLM")
UINT8, UINT32, INT32, BOOL, STRING, ARRAY = 0, 4, 5, 7, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(count: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", STRING, count) + b"".join(values)


def description(name: str = "x", *, dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def container(
    pairs: list[bytes],
    tensors: list[bytes] | None = None,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    data: bytes = bytes(64),
) -> bytes:
    tensors = [] if tensors is None else tensors
    counts = (len(tensors) if num_tensors is None else num_tensors, len(pairs) if num_pairs is None else num_pairs)
    head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs + tensors)
    return head + bytes(-len(head) % 32) + data


def read(path: Path, content: bytes) -> GGUFHeader:
    path.write_bytes(content)
    return read_gguf_header(MappedFile(path))


def test_every_value_type_is_read_as_the_gguf_package_wrote_it(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    expected: dict[str, Any] = {"general.architecture": "llama"}
    for kind, value in [
        ("uint8", 200), ("int8", -5), ("uint16", 60_000), ("int16", -300), ("uint32", 1 << 31), ("int32", -(1 << 30)),
        ("uint64", 1 << 63), ("int64", -(1 << 62)), ("float32", 0.5), ("float64", 0.1), ("bool", True), ("string", "é"),
    ]:  # fmt: skip
        getattr(writer, f"add_{kind}")(f"k.{kind}", value)
        expected[f"k.{kind}"] = value
    lists = {"words": ["a", "", "日本"], "ints": [1, -2], "floats": [0.5, 2.0], "flags": [True, False]}
    for name, values in lists.items():
        writer.add_array(f"k.{name}", values)
        expected[f"k.{name}"] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf_header(MappedFile(tmp_path / "x.gguf"))
    assert header.version == 3
    assert header.metadata == expected
    assert [type(value) for value in header.metadata.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize("alignment", [32, 64, 8])
def test_tensors_are_found_at_every_alignment(tmp_path: Path, alignment: int) -> None:
    values = {f"t{i}": np.random.default_rng(i).standard_normal((3, 5 + i), np.float32) for i in range(4)}
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_custom_alignment(alignment)
    for name, array in values.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors = read_gguf_header(MappedFile(tmp_path / "x.gguf")).tensors
    for name, array in values.items():
        np.testing.assert_array_equal(tensors[name].float32(), array)


def test_version_2_and_nested_arrays_are_read(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", UINT8, 2) + b"\x01\x02"
    nested = pair("k", ARRAY, struct.pack("<IQ", ARRAY, 2) + inner + struct.pack("<IQ", STRING, 1) + text("a"))
    header = read(tmp_path / "x.gguf", container([nested], version=2))
    assert (header.version, header.metadata) == (2, {"k": [[1, 2], ["a"]]})


def test_a_vocabulary_of_262144_tokens_is_read_within_two_seconds(tmp_path: Path) -> None:
    import time  # noqa: PLC0415

    tokens = [text(f"token {i}") for i in range(262_144)]
    content = container([pair("tokenizer.ggml.tokens", ARRAY, strings(len(tokens), tokens))])
    (tmp_path / "x.gguf").write_bytes(content)
    started = time.process_time()
    header = read_gguf_header(MappedFile(tmp_path / "x.gguf"))
    assert time.process_time() - started < 2.0  # about 0.1 s on an idle core
    assert header.metadata["tokenizer.ggml.tokens"][262_143] == "token 262143"


FAULTS: dict[str, tuple[bytes, str]] = {
    "bad magic": (container([], magic=b"GGML"), r"magic is b'GGML', it must be b'GGUF'"),
    "shorter than magic": (b"GG", "magic takes 4 bytes"),
    "nothing after magic": (b"GGUF", "version takes 4 bytes"),
    "version 1": (container([], version=1), "GGUF version is 1; versions 2 and 3 are read"),
    "big-endian": (container([], version=3 << 24), r"\(a big-endian file\)"),
    "n_tensors 2^60": (container([], num_tensors=1 << 60), r"tensor count is 1152921504606846976"),
    "n_kv 2^60": (container([], num_pairs=1 << 60), "key-value count is 1152921504606846976"),
    "zero-length key": (container([pair("", UINT32, bytes(4))]), "key 0 has length 0; it must be 1 to 65535"),
    "key length 2^62": (
        container([struct.pack("<Q", 1 << 62) + b"k" + struct.pack("<I", UINT32) + bytes(4)]),
        "key 0 has length 4611686018427387904",
    ),
    "key not UTF-8": (container([pair(b"\xff\xfe", UINT32, bytes(4))]), "key 0 is not valid UTF-8"),
    "key twice": (container([pair("k", UINT32, bytes(4))] * 2), "key 'k' appears twice"),
    "string length 2^62": (
        container([pair("k", STRING, struct.pack("<Q", 1 << 62) + b"abc")]),
        "value of key 'k' takes 4611686018427387904 bytes",
    ),
    "string not UTF-8": (container([pair("k", STRING, text(b"\xff"))]), "value of key 'k' is not valid UTF-8"),
    "string length 2^62 in an array": (
        container([pair("k", ARRAY, strings(2, [text("a"), struct.pack("<Q", 1 << 62)]))]),
        "key 'k', element 1: string length 4611686018427387904",
    ),
    "array of 2^62 bytes": (
        container([pair("k", ARRAY, struct.pack("<IQ", UINT8, 1 << 62))]),
        "key 'k' is an array of 4611686018427387904 elements",
    ),
    "array of 2^62 strings": (container([pair("k", ARRAY, strings(1 << 62, []))]), "key 'k' is an array of 46116860"),
    "array of 2^62 arrays": (
        container([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1 << 62))]),
        "key 'k' is an array of 46116860",
    ),
    "array in array in array in array in array": (
        container([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5 + bytes(12))]),
        "key 'k' nests arrays deeper than 4",
    ),
    "unknown type": (container([pair("k", 77, bytes(8))]), "key 'k' has unknown type 77"),
    "array of unknown type": (container([pair("k", ARRAY, struct.pack("<IQ", 99, 1))]), "array of unknown type 99"),
    "boolean 2": (container([pair("k", BOOL, b"\x02")]), "key 'k' has the boolean 2"),
    "alignment 0": (container([pair("general.alignment", UINT32, bytes(4))]), "general.alignment is 0; it must be a"),
    "alignment 3": (
        container([pair("general.alignment", UINT32, struct.pack("<I", 3))]),
        "general.alignment is 3; it must be a power of two",
    ),
    "alignment as text": (
        container([pair("general.alignment", STRING, text("32"))]),
        "key 'general.alignment' is string; it must be uint32",
    ),
    "token_type as bytes": (
        container([pair("tokenizer.ggml.token_type", ARRAY, struct.pack("<IQ", UINT8, 4) + bytes(4))]),
        "key 'tokenizer.ggml.token_type' is array of uint8; it must be array of int32",
    ),
    "dimension 0": (container([], [description(dims=(4, 0))]), r"tensor 'x' has dimension 0"),
    "product over 2^64": (
        container([], [description(dims=(1 << 40, 1 << 40))]),
        r"tensor 'x' has dimensions .* whose product is over 2\^63",
    ),
    "n_dims 1000000": (
        container([], [text("x") + struct.pack("<I", 1_000_000) + bytes(40)]),
        "tensor 'x' has n_dims 1000000; it must be 1 to 4",
    ),
    "n_dims 0": (container([], [description(dims=()) + bytes(32)]), "tensor 'x' has n_dims 0"),
    "tensor name empty": (container([], [description("")]), "name of tensor 0 has length 0"),
    "tensor twice": (container([], [description(), description()]), "tensor 'x' appears twice"),
    "unknown format": (container([], [description(kind=1234)]), "tensor 'x' has format number 1234"),
    "unsupported format": (container([], [description(dims=(256,), kind=16)]), "has format IQ2_XXS, which is not supp"),
    "row is no whole block": (container([], [description(dims=(33,), kind=3)]), "rows of 33 elements, not a mul"),
    "offset not aligned": (container([], [description(offset=5)]), "has offset 5, not a multiple of alignment 32"),
    "offset 2^63": (container([], [description(offset=1 << 63)]), "tensor 'x': expected .* bytes in the file, it has"),
    "overlap": (
        container([], [description("x", dims=(16,)), description("y", offset=32)]),
        "tensors 'x' and 'y' overlap",
    ),
    "data missing": (container([], [description(dims=(1024,))]), "expected .* the file is truncated"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_file_is_one_line_that_names_the_field(tmp_path: Path, fault: str) -> None:
    content, message = FAULTS[fault]
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path / "x.gguf", content)
    assert str(tmp_path / "x.gguf") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_in_errors_are_printable_and_short(tmp_path: Path) -> None:
    content = container([pair("evil\n\x1b[31m" + "k" * 1000, 77, bytes(8))])
    with pytest.raises(CheckpointError) as caught:
        read(tmp_path / "x.gguf", content)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


# --- any damage -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("good") / "x.gguf", CONFIG, hub_weights(CONFIG))
    return path.read_bytes()


def outcome(path: Path, content: bytes) -> None:
    """Open and close; any error but a deliberate one fails the test."""
    path.write_bytes(content)
    message = ""
    try:
        open_checkpoint(path).close()
    except ModelError as error:
        message = str(error)
    assert "\n" not in message


HEADER_BYTES = 6000
_DAMAGE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_DAMAGE
@given(changes=st.lists(st.tuples(st.integers(0, HEADER_BYTES), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_header_bytes_end_in_a_checkpoint_or_a_clear_error(
    tmp_path: Path, good: bytes, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(good)
    for position, value in changes:
        content[position] = value
    outcome(tmp_path / "x.gguf", bytes(content))


@_DAMAGE
@given(position=st.integers(0, HEADER_BYTES), value=st.integers(0, (1 << 64) - 1))
def test_a_changed_length_never_allocates_more_than_the_file_and_some(
    tmp_path: Path, good: bytes, position: int, value: int
) -> None:
    content = bytearray(good)
    content[position : position + 8] = struct.pack("<Q", value)
    tracemalloc.start()
    try:
        outcome(tmp_path / "x.gguf", bytes(content))
        assert tracemalloc.get_traced_memory()[1] < 3 * len(good) + (4 << 20)
    finally:
        tracemalloc.stop()


@_DAMAGE
@given(length=st.integers(1, 1 << 20))
def test_a_cut_file_is_a_clear_error(tmp_path: Path, good: bytes, length: int) -> None:
    (tmp_path / "x.gguf").write_bytes(good[: length % len(good) or 1])
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "x.gguf")


@pytest.mark.parametrize("damage", [lambda good: b"", lambda good: good[:1], lambda good: good[: len(good) // 2]])
def test_an_empty_tiny_or_halved_file_is_a_clear_error(
    tmp_path: Path, good: bytes, damage: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "x.gguf").write_bytes(damage(good))
    with pytest.raises(CheckpointError, match=r"x\.gguf: "):
        open_checkpoint(tmp_path / "x.gguf")
