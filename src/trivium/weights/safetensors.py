"""Checkpoints in Hugging Face layout: config.json and safetensors files, single or sharded by an index.

The header is read here rather than by a library, so that every fault is found before anything is served and is
said with file, expected size and real size. Pickled weights (.bin, .pt) are never read. Weights that AWQ or GPTQ
quantized lie there in pieces, which are put together; see `weights.zero_points`.

File layout::

    [0, 8)               header length n, little-endian
    [8, 8 + n)           JSON: name -> {dtype, shape, data_offsets: [begin, end)}, and __metadata__
    [8 + n, file size)   tensor bytes, back to back, without holes

Source: the safetensors format description.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from trivium.base.errors import CheckpointError
from trivium.weights.formats import SIZES
from trivium.weights.mapped import MappedFile
from trivium.weights.stored import Checkpoint, StoredTensor
from trivium.weights.zero_points import join, layout_of

MAX_HEADER_BYTES = 100_000_000
"""Longest header that the format allows."""
MAX_JSON_BYTES = 64 * 1024 * 1024
"""Largest config or index file that is read."""

_LENGTH_BYTES = 8
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def open_directory(directory: Path) -> Checkpoint:
    """Open a directory in Hugging Face layout.

    Raises:
        CheckpointError: A file is missing, truncated or malformed, or the weights are stored in a refused way.
    """
    config = _read_json(directory / "config.json")
    layout = layout_of(config, str(directory / "config.json"))
    generation = directory / "generation_config.json"
    files: list[MappedFile] = []
    try:
        stored = _open_shards(directory, files)
        tensors = stored if layout is None else join(stored, layout)
        generation_config = _read_json(generation) if generation.is_file() else {}
    except BaseException:
        for file in files:
            file.close()
        raise
    return Checkpoint(directory, "safetensors", config, generation_config, {}, tensors, files)


def read_header(file: MappedFile) -> dict[str, StoredTensor]:
    """Read and check the header of one safetensors file.

    Raises:
        CheckpointError: The file is truncated or its header is malformed.
    """
    if file.size < _LENGTH_BYTES:
        raise CheckpointError(f"{file.path}: expected at least 8 bytes of header length, the file has {file.size}")
    header_len = int.from_bytes(file.buffer[:_LENGTH_BYTES], "little")
    if header_len > min(MAX_HEADER_BYTES, file.size - _LENGTH_BYTES):
        raise CheckpointError(
            f"{file.path}: header length {header_len} bytes does not fit: the file has {file.size} bytes in all"
        )
    entries = _parse_header(file, header_len)
    entries.pop("__metadata__", None)
    data_start = _LENGTH_BYTES + header_len
    tensors = {name: _stored(file, data_start, name, entry) for name, entry in entries.items()}
    _check_layout(file, data_start, list(tensors.values()))
    return tensors


def _parse_header(file: MappedFile, header_len: int) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise ValueError("a name appears twice")
        return entries

    try:
        entries = json.loads(
            file.buffer[_LENGTH_BYTES : _LENGTH_BYTES + header_len].decode("utf-8"), object_pairs_hook=unique
        )
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.path}: the header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file.path}: the header is a JSON {type(entries).__name__}, it must be an object")
    return entries


def _stored(file: MappedFile, data_start: int, name: str, entry: Any) -> StoredTensor:
    where = f"{file.path}: tensor '{name}'"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: its header entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SIZES or SIZES[dtype].block_len != 1:
        raise CheckpointError(f"{where}: dtype {str(dtype)[:40]!r} is not known")
    if not _are_counts(shape):
        raise CheckpointError(f"{where}: shape {str(shape)[:80]} is not a list of whole numbers")
    if not _are_counts(offsets):
        raise CheckpointError(f"{where}: data_offsets {str(offsets)[:80]} are not whole numbers")
    begin, end = _two(where, offsets)
    expected = SIZES[dtype].num_bytes(math.prod(shape))
    if end - begin != expected:
        raise CheckpointError(f"{where}: shape {shape} of {dtype} takes {expected} bytes, its range has {end - begin}")
    if data_start + end > file.size:
        raise CheckpointError(
            f"{where}: expected {data_start + end} bytes in the file, it has {file.size}; the file is truncated"
        )
    return StoredTensor(name, tuple(shape), dtype, file, data_start + begin)


def _two(where: str, offsets: list[int]) -> tuple[int, int]:
    try:
        begin, end = offsets
    except ValueError:
        raise CheckpointError(f"{where}: data_offsets has {len(offsets)} numbers, it must have 2") from None
    return begin, end


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_layout(file: MappedFile, data_start: int, tensors: Sequence[StoredTensor]) -> None:
    position = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset != position:
            what = "overlaps the one before" if tensor.offset < position else "follows a hole"
            raise CheckpointError(
                f"{file.path}: tensor '{tensor.name}' {what}: it begins at byte {tensor.offset}, expected {position}"
            )
        position += tensor.num_bytes
    if position != file.size:
        raise CheckpointError(f"{file.path}: expected {position} bytes, the file has {file.size}")


def _open_shards(directory: Path, files: list[MappedFile]) -> dict[str, StoredTensor]:
    single, index = directory / _SINGLE, directory / _INDEX
    if single.is_file():
        files.append(MappedFile(single))
        return read_header(files[-1])
    if not index.is_file():
        raise _no_weights(directory)
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if not (directory / shard).is_file()]
    if missing:
        raise CheckpointError(f"{index} names files that are missing from {directory}: {_listed(missing)}")
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        files.append(MappedFile(directory / shard))
        tensors.update(_checked_against_index(index, shard_of, shard, read_header(files[-1])))
    return tensors


def _checked_against_index(
    index: Path, shard_of: Mapping[str, str], shard: str, tensors: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    expected = {name for name, its_shard in shard_of.items() if its_shard == shard}
    if absent := sorted(expected - tensors.keys()):
        raise CheckpointError(f"{index} says that {shard} holds tensors it does not: {_listed(absent)}")
    if unlisted := sorted(tensors.keys() - expected):
        raise CheckpointError(f"{shard} holds tensors that {index} does not place there: {_listed(unlisted)}")
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    shard_of = _read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index}: weight_map is missing or empty")
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: tensor '{name}' is in {str(shard)[:80]!r}, "
                "which is not the name of a .safetensors file beside the index"
            )
    return shard_of


def _no_weights(directory: Path) -> CheckpointError:
    names = sorted(path.name for path in directory.iterdir())
    if pickled := [name for name in names if name.endswith(_PICKLED)]:
        return CheckpointError(
            f"{directory}: {_listed(pickled)}: pickled weights can run code and are never read; "
            "convert them to safetensors"
        )
    if found := [name for name in names if name.endswith(".safetensors")]:
        return CheckpointError(f"{directory}: neither {_SINGLE} nor {_INDEX} is there, only {_listed(found)}")
    return CheckpointError(f"{directory}: no weights: expected {_SINGLE} or {_INDEX}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {size} bytes, a configuration has at most {MAX_JSON_BYTES}")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: a JSON {type(value).__name__}, it must be an object")
    return value


def _listed(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
