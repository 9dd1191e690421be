"""Open a checkpoint of either format, checked whole before it is returned.

The one place that chooses between the readers. A directory is read in Hugging Face layout, a .gguf file as GGUF;
everything else is refused by name.
"""

from __future__ import annotations

from pathlib import Path

from trivium.base.errors import CheckpointError
from trivium.weights.gguf_config import generation_config, hf_config
from trivium.weights.gguf_header import read_gguf_header
from trivium.weights.mapped import MappedFile
from trivium.weights.safetensors import open_directory
from trivium.weights.stored import Checkpoint, CheckpointFormat, StoredTensor

__all__ = ["Checkpoint", "CheckpointFormat", "StoredTensor", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint; tensors stay on disk until they are read.

    Args:
        path: A directory with config.json and safetensors files, or a .gguf file.

    Returns:
        The checkpoint; close it, or use it as a context manager.

    Raises:
        CheckpointError: A file is missing, truncated, malformed, or of a kind that is not read.
        UnknownArchitectureError: A GGUF file names an architecture that is not known.
    """
    if path.is_dir():
        return open_directory(path)
    if path.suffix == ".gguf":
        return _open_gguf(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or directory")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: pass the directory that holds it, with its config.json")
    raise CheckpointError(f"{path}: not a directory in Hugging Face layout and not a .gguf file")


def _open_gguf(path: Path) -> Checkpoint:
    file = MappedFile(path)
    try:
        header = read_gguf_header(file)
        _refuse_split(path, header.metadata.get("split.count"))
        config = hf_config(str(path), header.metadata, header.tensors)
        return Checkpoint(
            path, "gguf", config, generation_config(header.metadata), header.metadata, header.tensors, [file]
        )
    except BaseException:
        file.close()
        raise


def _refuse_split(path: Path, count: object) -> None:
    if isinstance(count, int) and count > 1:
        raise CheckpointError(f"{path}: split.count is {count}: merge the {count} parts into one file first")
