"""Reading a GGUF header without trusting it: every length is checked against the bytes that are left.

Knows the container only: key-values, tensor descriptions, where the data lie. What the keys mean is in
`gguf_config`. A malformed file costs one `CheckpointError` that names the field, no large allocation, no signal.

File layout (little-endian)::

    magic "GGUF" | version u32 | tensor count u64 | key-value count u64
    key-values     key string | value type u32 | value
    descriptions   name string | number of dimensions u32 | dimensions u64, fastest first | format u32 | offset u64
    padding        to general.alignment
    data           each tensor at its offset from here, a multiple of the alignment

Strings are a u64 length and UTF-8 bytes; arrays are an element type u32, a u64 count and the elements.

Source: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trivium.base.errors import CheckpointError
from trivium.base.intmath import align_up
from trivium.weights.formats import FORMATS
from trivium.weights.mapped import MappedFile
from trivium.weights.stored import StoredTensor

MAX_NAME_BYTES = 65_535
"""Longest key or tensor name that the specification allows."""
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_ARRAY_DEPTH = 4
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, tuple[str, str]] = {
    0: ("uint8", "<B"), 1: ("int8", "<b"), 2: ("uint16", "<H"), 3: ("int16", "<h"), 4: ("uint32", "<I"),
    5: ("int32", "<i"), 6: ("float32", "<f"), 7: ("bool", "<B"), 10: ("uint64", "<Q"), 11: ("int64", "<q"),
    12: ("float64", "<d"),
}  # fmt: skip
"""Type number to name and layout, which struct and NumPy spell alike."""
_TYPE_NAMES = {**{number: name for number, (name, _) in _SCALARS.items()}, _STRING: "string", _ARRAY: "array"}
_EXPECTED: Mapping[str, tuple[str, ...]] = {
    "general.architecture": ("string",),
    "general.alignment": ("uint32",),
    "tokenizer.ggml.model": ("string",),
    "tokenizer.ggml.pre": ("string",),
    "tokenizer.ggml.tokens": ("array of string",),
    "tokenizer.ggml.merges": ("array of string",),
    "tokenizer.ggml.scores": ("array of float32",),
    "tokenizer.ggml.token_type": ("array of int32", "array of uint32"),
    "tokenizer.chat_template": ("string",),
}
"""Types of the keys that readers rely on; checked before their value is read."""

_FORMAT_NUMBERS: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
_MIN_KEY_VALUE_BYTES = 8 + 1 + 4 + 1
_MIN_DESCRIPTION_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says before its data."""

    version: int
    metadata: dict[str, Any]
    """Key to value: numbers, booleans, strings, and lists of them."""
    tensors: dict[str, StoredTensor]
    """By name; shapes are row-major, the file's order reversed."""


class _Cursor:
    """A position in the mapped file; every read names what is read, for the error."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0

    @property
    def left(self) -> int:
        return self.file.size - self.position

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: {message}")

    def take(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` and return where they begin."""
        if num_bytes > self.left:
            raise self.error(
                f"{what} takes {num_bytes} bytes at byte {self.position}, the file ends at byte {self.file.size}"
            )
        start = self.position
        self.position += num_bytes
        return start

    def number(self, layout: str, what: str) -> Any:
        start = self.take(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self.file.buffer, start)[0]

    def string(self, what: str, *, limit: int | None = None) -> str:
        length = self.number("<Q", f"length of {what}")
        if limit is not None and not 1 <= length <= limit:
            raise self.error(f"{what} has length {length}; it must be 1 to {limit} bytes")
        start = self.take(length, what)
        try:
            return self.file.buffer[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not valid UTF-8: {error.reason}") from None


def read_gguf_header(file: MappedFile) -> GGUFHeader:
    """Read and check everything before the data, and that the data are all there.

    Raises:
        CheckpointError: The file is not GGUF, is truncated, or is malformed; the message names the field.

    Cost: about 0.2 s for a vocabulary of 262,144 tokens.
    """
    cursor = _Cursor(file)
    version, num_tensors, num_pairs = _read_preamble(cursor)
    metadata: dict[str, Any] = {}
    for index in range(num_pairs):
        key = cursor.string(f"key {index}", limit=MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"key '{_shown(key)}' appears twice")
        metadata[key] = _read_value(cursor, key)
    descriptions = [_read_description(cursor, index) for index in range(num_tensors)]
    alignment = _alignment(cursor, metadata)
    data_start = align_up(cursor.position, alignment)
    tensors: dict[str, StoredTensor] = {}
    for name, shape, format_name, offset in descriptions:
        if name in tensors:
            raise cursor.error(f"tensor '{_shown(name)}' appears twice")
        if offset % alignment:
            raise cursor.error(f"tensor '{_shown(name)}' has offset {offset}, not a multiple of alignment {alignment}")
        tensors[name] = StoredTensor(name, shape, format_name, file, data_start + offset)
    _check_data(cursor, tensors)
    return GGUFHeader(version, metadata, tensors)


def _read_preamble(cursor: _Cursor) -> tuple[int, int, int]:
    start = cursor.take(4, "magic")
    magic = cursor.file.buffer[start : start + 4]
    if magic != b"GGUF":
        raise cursor.error(f"magic is {magic!r}, it must be b'GGUF': not a GGUF file")
    version = cursor.number("<I", "version")
    if version not in {2, 3}:
        hint = " (a big-endian file)" if version in {2 << 24, 3 << 24} else ""
        raise cursor.error(f"GGUF version is {version}{hint}; versions 2 and 3 are read")
    num_tensors = cursor.number("<Q", "tensor count")
    num_pairs = cursor.number("<Q", "key-value count")
    for what, count, least in (
        ("key-value count", num_pairs, _MIN_KEY_VALUE_BYTES),
        ("tensor count", num_tensors, _MIN_DESCRIPTION_BYTES),
    ):
        if count * least > cursor.left:
            raise cursor.error(
                f"{what} is {count}, which takes at least {count * least} bytes; {cursor.left} are left in the file"
            )
    return version, num_tensors, num_pairs


def _read_value(cursor: _Cursor, key: str) -> Any:
    shown = _shown(key)
    number = cursor.number("<I", f"type of key '{shown}'")
    if number == _ARRAY:
        element = cursor.number("<I", f"element type of key '{shown}'")
        _expect_type(cursor, key, f"array of {_TYPE_NAMES.get(element, f'unknown type {element}')}")
        return _read_array(cursor, element, f"key '{shown}'", depth=1)
    _expect_type(cursor, key, _TYPE_NAMES.get(number, f"unknown type {number}"))
    if number == _STRING:
        return cursor.string(f"value of key '{shown}'")
    value = cursor.number(_SCALARS[number][1], f"value of key '{shown}'")
    return _booleans(cursor, [value], f"key '{shown}'")[0] if number == _BOOL else value


def _expect_type(cursor: _Cursor, key: str, type_name: str) -> None:
    if "unknown" in type_name:
        raise cursor.error(f"key '{_shown(key)}' has {type_name}")
    expected = _EXPECTED.get(key, (type_name,))
    if type_name not in expected:
        raise cursor.error(f"key '{key}' is {type_name}; it must be {' or '.join(expected)}")


def _read_array(cursor: _Cursor, element: int, what: str, *, depth: int) -> list[Any]:
    count = cursor.number("<Q", f"length of {what}")
    layout = _SCALARS[element][1] if element in _SCALARS else ""
    least = struct.calcsize(layout) if layout else (8 if element == _STRING else 12)
    if count * least > cursor.left:
        raise cursor.error(
            f"{what} is an array of {count} elements, which takes at least {count * least} bytes; "
            f"{cursor.left} are left in the file"
        )
    if element == _STRING:
        return _read_strings(cursor, count, what)
    if element == _ARRAY:
        return _read_arrays(cursor, count, what, depth=depth)
    start = cursor.take(count * least, what)
    values: list[Any] = np.frombuffer(cursor.file.buffer, layout, count, start).tolist() if count else []
    return _booleans(cursor, values, what) if element == _BOOL else values


def _read_arrays(cursor: _Cursor, count: int, what: str, *, depth: int) -> list[Any]:
    if depth >= MAX_ARRAY_DEPTH:
        raise cursor.error(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
    arrays = []
    for _ in range(count):
        element = cursor.number("<I", f"element type in {what}")
        if element not in _TYPE_NAMES:
            raise cursor.error(f"{what} has elements of unknown type {element}")
        arrays.append(_read_array(cursor, element, what, depth=depth + 1))
    return arrays


def _read_strings(cursor: _Cursor, count: int, what: str) -> list[str]:
    # The loop that decides how fast a large vocabulary is read: no calls but these three.
    buffer, position, end = cursor.file.buffer, cursor.position, cursor.file.size
    length_at = struct.Struct("<Q").unpack_from
    strings: list[str] = []
    for index in range(count):
        start = position + 8
        if start > end:
            raise cursor.error(f"{what}, element {index}: the file ends at byte {end}")
        position = start + length_at(buffer, position)[0]
        if position > end:
            raise cursor.error(
                f"{what}, element {index}: string length {position - start} at byte {start - 8} "
                f"reaches beyond the file's {end} bytes"
            )
        try:
            strings.append(buffer[start:position].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise cursor.error(f"{what}, element {index} is not valid UTF-8: {error.reason}") from None
    cursor.position = position
    return strings


def _booleans(cursor: _Cursor, values: list[int], what: str) -> list[bool]:
    if bad := [value for value in values if value not in {0, 1}]:
        raise cursor.error(f"{what} has the boolean {bad[0]}; it must be 0 or 1")
    return [value == 1 for value in values]


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment: int = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {alignment}; it must be a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _read_description(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], str, int]:
    name = cursor.string(f"name of tensor {index}", limit=MAX_NAME_BYTES)
    what = f"tensor '{_shown(name)}'"
    num_dimensions = cursor.number("<I", f"number of dimensions of {what}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{what} has n_dims {num_dimensions}; it must be 1 to {MAX_DIMENSIONS}")
    dimensions = [cursor.number("<Q", f"dimension {axis} of {what}") for axis in range(num_dimensions)]
    if 0 in dimensions:
        raise cursor.error(f"{what} has dimension 0: {dimensions}")
    if math.prod(dimensions) >= 1 << 63:
        raise cursor.error(f"{what} has dimensions {dimensions}, whose product is over 2^63 elements")
    number = cursor.number("<I", f"format of {what}")
    format_name = _FORMAT_NUMBERS.get(number, f"number {number}")
    if format_name not in FORMATS:
        raise cursor.error(f"{what} has format {format_name}, which is not supported; known are {', '.join(FORMATS)}")
    block_len = FORMATS[format_name].block_len
    if dimensions[0] % block_len:
        raise cursor.error(
            f"{what} has rows of {dimensions[0]} elements, not a multiple of {format_name}'s {block_len}"
        )
    return name, tuple(reversed(dimensions)), format_name, cursor.number("<Q", f"offset of {what}")


def _check_data(cursor: _Cursor, tensors: Mapping[str, StoredTensor]) -> None:
    previous: StoredTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        end = tensor.offset + tensor.num_bytes
        if end > cursor.file.size:
            raise cursor.error(
                f"tensor '{_shown(tensor.name)}': expected {end} bytes in the file, it has {cursor.file.size}; "
                "the file is truncated"
            )
        if previous is not None and tensor.offset < previous.offset + previous.num_bytes:
            raise cursor.error(f"tensors '{_shown(previous.name)}' and '{_shown(tensor.name)}' overlap")
        previous = tensor


def _shown(name: str) -> str:
    # on one line, printable, and short enough for an error message
    return name[:80].encode("unicode_escape").decode("ascii")
