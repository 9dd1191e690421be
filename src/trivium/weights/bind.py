"""From the tensors of a checkpoint to the parameters of a graph, checked before a byte of weights is read.

Says all that is wrong at once: missing tensors, wrong shapes, tensors that nothing asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError
from trivium.config.model import ModelConfig
from trivium.weights.codes import own_format, read_codes
from trivium.weights.formats import FORMATS
from trivium.weights.kinds import Codes, dequantize
from trivium.weights.names import Rule, expand, hub_name, hub_prefix, is_leftover, rules_for, stored_rows, taken_rows
from trivium.weights.stored import Checkpoint, Tensor
from trivium.weights.zero_points import ZeroPointTensor

Shape = tuple[int, ...]

_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the graph, still in the file."""

    name: str
    """Canonical name."""
    shape: Shape
    stored: Tensor
    rows: NDArray[np.intp] | slice | None
    """Rows of the stored tensor, in order; `None` takes all."""
    offset: float

    @property
    def format(self) -> str:
        """Storage format, such as F32, BF16 or Q4_1."""
        return self.stored.format

    def float32(self) -> NDArray[np.float32]:
        """Read and dequantize.

        Returns:
            A new array of `shape`, in canonical form (norm weights are what multiplies).

        Raises:
            CheckpointError: The format cannot be dequantized.
        """
        values = self.stored.float32(self.rows)
        return values if self.offset == 0.0 else np.add(values, np.float32(self.offset), out=values)

    @property
    def own_format(self) -> str:
        """The panel format that keeps a matrix as the checkpoint has it: key of `kinds.PANEL_FORMATS`.

        Raises:
            CheckpointError: The format cannot be packed.
        """
        return own_format(self.stored) if self.offset == 0.0 else "f32"

    def codes(self, panel_format: str, start: int = 0, end: int | None = None) -> Codes:
        """Read a matrix, or some of its rows, as a record for the packer.

        Args:
            panel_format: Key of `kinds.PANEL_FORMATS`; exact when it is `own_format` or f32, see `weights.quantize`
                for the others.
            start: First row.
            end: One past the last row; `None` for all.

        Returns:
            A record of new arrays, in canonical form and order.

        Raises:
            CheckpointError: A value or scale is not finite, or does not fit the format.
        """
        everything = np.arange(self.stored.shape[0], dtype=np.intp)
        rows = everything if self.rows is None else everything[self.rows]
        return read_codes(self.stored, panel_format, rows=rows[start:end], offset=self.offset)


@dataclass(frozen=True, slots=True)
class StoredAs:
    """A matrix as it is once it was kept in another format: what was lost is lost here too."""

    parameter: Parameter
    panel_format: str

    @property
    def shape(self) -> Shape:
        """Of the matrix."""
        return self.parameter.shape

    def float32(self) -> NDArray[np.float32]:
        """Read it, keep it in the format, and dequantize it again.

        Raises:
            CheckpointError: A value or scale is not finite, or does not fit the format.
        """
        return dequantize(self.parameter.codes(self.panel_format))


def bind_parameters(
    checkpoint: Checkpoint, wanted: Mapping[str, Shape], config: ModelConfig
) -> Mapping[str, Parameter]:
    """Find every wanted parameter in a checkpoint.

    Args:
        checkpoint: Where to look.
        wanted: Canonical name to shape, as the graph declares them. With tied embeddings `lm_head.weight` is not
            among them.
        config: The model's shape, for fused and reordered projections.

    Returns:
        Lazy parameters by canonical name, in the order of `wanted`.

    Raises:
        CheckpointError: Tensors are missing, have another shape, have a format that cannot be read, or are unused
            and not known to be harmless; the message lists them.
        UnknownArchitectureError: No tensor names are known for this architecture and format.
    """
    rules = _rules(checkpoint, config)
    used = {rules[name].stored for name in wanted if name in rules}
    missing = [_missing(name, rules, checkpoint) for name in wanted if _is_missing(name, rules, checkpoint)]
    unused = [
        name
        for name in checkpoint.tensors
        if name not in used and not is_leftover(name, config) and not _is_zero_bias(name, checkpoint)
    ]
    _refuse(checkpoint, "lacks tensors", missing, hint=_head_hint(wanted, missing))
    wrong = [problem for name, shape in wanted.items() if (problem := _problem(rules[name], checkpoint, shape, config))]
    _refuse(checkpoint, "has tensors that do not fit", wrong)
    _refuse(checkpoint, "has tensors that nothing asks for", unused)
    return {name: _parameter(rules[name], checkpoint, shape, config) for name, shape in wanted.items()}


def _rules(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Rule]:
    if checkpoint.format == "gguf":
        return expand(rules_for("gguf", checkpoint.metadata["general.architecture"]), config.num_layers)
    prefix = hub_prefix(checkpoint.tensors.keys())
    rules = expand(rules_for("safetensors", config.architecture), config.num_layers)
    return {
        name: Rule(rule.canonical, hub_name(rule.stored, prefix), rule.part, rule.offset)
        for name, rule in rules.items()
    }


def _is_missing(name: str, rules: Mapping[str, Rule], checkpoint: Checkpoint) -> bool:
    return name not in rules or rules[name].stored not in checkpoint.tensors


def _missing(name: str, rules: Mapping[str, Rule], checkpoint: Checkpoint) -> str:
    if name not in rules:
        return f"{name} (no {checkpoint.format} name is known for it)"
    return rules[name].stored


def _head_hint(wanted: Mapping[str, Shape], missing: Sequence[str]) -> str:
    if "lm_head.weight" in wanted and any("lm_head" in name for name in missing):
        return "; a model with tied embeddings says tie_word_embeddings: true in its config.json"
    return ""


def _is_zero_bias(name: str, checkpoint: Checkpoint) -> bool:
    """Whether a tensor is the bias of zeros that GPTQ's writers give to layers that have none."""
    weight = checkpoint.tensors.get(f"{name.removesuffix('.bias')}.weight")
    return isinstance(weight, ZeroPointTensor) and not np.any(checkpoint.tensors[name].float32())


def _parameter(rule: Rule, checkpoint: Checkpoint, shape: Shape, config: ModelConfig) -> Parameter:
    stored = checkpoint.tensors[rule.stored]
    return Parameter(rule.canonical, shape, stored, taken_rows(rule.part, config), rule.offset)


def _problem(rule: Rule, checkpoint: Checkpoint, shape: Shape, config: ModelConfig) -> str | None:
    stored = checkpoint.tensors[rule.stored]
    rows = stored_rows(rule.part, config)
    expected = shape if rows is None else (rows, *shape[1:])
    if stored.shape != expected:
        return f"{stored.name} has shape {list(stored.shape)}, expected {list(expected)}"
    if stored.format not in FORMATS and not isinstance(stored, ZeroPointTensor):
        return f"{stored.name} has format {stored.format}, known are {', '.join(FORMATS)}"
    return None


def _refuse(checkpoint: Checkpoint, what: str, names: Sequence[str], hint: str = "") -> None:
    if not names:
        return
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    raise CheckpointError(f"{checkpoint.path} {what}: {', '.join(names[:_MAX_LISTED])}{more}{hint}")
