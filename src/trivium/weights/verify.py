"""What a checkpoint holds (`describe` shows it), and whether its bytes are what they were (`doctor` asks)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trivium.weights.catalog import PackagedModel
from trivium.weights.stored import Checkpoint
from trivium.weights.wheels import file_sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatShare:
    """The tensors of one storage format."""

    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSummary:
    """Sizes of a checkpoint."""

    num_tensors: int
    num_parameters: int
    """Elements of all tensors, leftovers included."""
    num_bytes: int
    """Of tensors in the files."""
    bits_per_parameter: float
    formats: Mapping[str, FormatShare]
    """By format, the largest share of bytes first."""


def summarize(checkpoint: Checkpoint) -> CheckpointSummary:
    """Count tensors, parameters and bytes, by storage format."""
    shares: dict[str, FormatShare] = {}
    for tensor in checkpoint.tensors.values():
        before = shares.get(tensor.format, FormatShare(num_tensors=0, num_parameters=0, num_bytes=0))
        shares[tensor.format] = FormatShare(
            num_tensors=before.num_tensors + 1,
            num_parameters=before.num_parameters + tensor.num_elements,
            num_bytes=before.num_bytes + tensor.num_bytes,
        )
    by_size = sorted(shares.items(), key=lambda item: (-item[1].num_bytes, item[0]))
    num_parameters = sum(share.num_parameters for share in shares.values())
    num_bytes = sum(share.num_bytes for share in shares.values())
    return CheckpointSummary(
        num_tensors=len(checkpoint.tensors),
        num_parameters=num_parameters,
        num_bytes=num_bytes,
        bits_per_parameter=8 * num_bytes / max(1, num_parameters),
        formats=dict(by_size),
    )


def full_sha256(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the SHA-256 of every file of weights, by file name.

    Cost: reads every byte, about one second per GB.
    """
    return {file.path.name: hashlib.sha256(file.buffer).hexdigest() for file in checkpoint.files}


def is_as_pinned(model: PackagedModel, path: Path) -> bool:
    """Whether a cached model file still has the checksum that the catalog pins.

    Cost: reads every byte.
    """
    return path.stat().st_size == model.num_bytes and file_sha256(path) == model.sha256
