"""LoRA adapters as the peft library saves them: a folder with adapter_config.json and adapter_model.safetensors.

::

    base_model.model.model.layers.3.mlp.up_proj.lora_A.weight     [r, K]
    |---- peft ----| |---- the base's own name ---| |- which -|

A module of the base is one parameter here, or several where the base's file fuses projections (Phi-3's qkv_proj): these
share A, and each takes its rows of B. What fits no module, comes without its other half, or is missing is listed by
name and refused: an adapter is whole or it is not loaded. Files are read into memory, not mapped, so that whoever
overwrites one hurts nobody.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError
from trivium.config.model import ModelConfig
from trivium.config.sizes import format_bytes
from trivium.weights.mapped import MappedFile
from trivium.weights.names import (
    HUB_PREFIXES,
    Rule,
    expand,
    hub_name,
    rules_for,
    stored_rows,
    taken_rows,
)
from trivium.weights.peft_config import MAX_CONFIG_BYTES, PeftConfig, read_peft_config
from trivium.weights.safetensors import MAX_HEADER_BYTES, read_header
from trivium.weights.stored import StoredTensor

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)
"""All that is read of an adapter's folder."""

Shapes = Mapping[str, tuple[int, int]]
"""Every parameter that adapters may add to, and its shape [N, K]."""

_PREFIX = "base_model.model."
_HALF = re.compile(r"(?P<module>.+)\.(?P<half>lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B)")
_COPIES = re.compile(r"(?P<module>.*(?:embed_tokens|lm_head))(?:\.base_layer)?\.weight")
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to the product with one parameter [N, K]: scale * B (A x)."""

    a: NDArray[np.float32]
    """[r, K], any floating type; kept as float32."""
    b: NDArray[np.float32]
    """[N, r]."""
    scale: float
    """Alpha over rank, in most files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftAdapter:
    """An adapter that was read and fits the model."""

    products: Mapping[str, LowRank]
    """By the canonical name of the parameter that is multiplied by."""
    rank: int
    """Largest of its matrices."""
    base_model: str | None
    """What it was trained on, as its configuration says."""
    fingerprint: str
    """Of every byte of both files: 64 hexadecimal digits."""


def read_peft(folder: Path, shapes: Shapes, config: ModelConfig, *, max_rank: int) -> PeftAdapter:
    """Read an adapter and check it against a model, whole.

    Args:
        folder: Holds `FILES`.
        shapes: Of the model.
        config: Of the model.
        max_rank: Largest rank that is taken.

    Raises:
        CheckpointError: A file is missing, truncated or malformed; the configuration asks for what is not done here;
            a rank is too large; or weights fit no part of the model, which are listed.
        UnknownArchitectureError: No names are known for the modules of this architecture.
    """
    content = _config_bytes(folder)
    peft = read_peft_config(folder / CONFIG_FILE, content)
    if peft.rank > max_rank:
        raise _too_high(peft, peft.rank, max_rank)
    weights = folder / WEIGHTS_FILE
    _check_weights_file(weights, shapes, config, max_rank)
    file = MappedFile(weights, is_copied=True)
    try:
        return _read(file, peft, _Modules(shapes, config), max_rank, content)
    finally:
        file.close()


def _read(file: MappedFile, peft: PeftConfig, modules: _Modules, max_rank: int, content: bytes) -> PeftAdapter:
    halves = _halves(file, read_header(file), modules)
    _refuse_gaps(file.path, peft, halves, modules)
    products: dict[str, LowRank] = {}
    for module, (a, b) in halves.items():
        full_name = a.name.removeprefix(_PREFIX).removesuffix(".lora_A.weight")
        rank = peft.rank_of(full_name)
        if rank > max_rank:
            raise _too_high(peft, rank, max_rank)
        products.update(_of_module(file.path, modules, module, (a, b), rank, peft.scale_of(full_name)))
    digest = hashlib.sha256(content)
    digest.update(file.buffer)
    return PeftAdapter(
        products=products,
        rank=max(len(each.a) for each in products.values()),
        base_model=peft.base_model,
        fingerprint=digest.hexdigest(),
    )


class _Modules:
    """The modules of a model as its published implementation names them, and the parameters in each."""

    def __init__(self, shapes: Shapes, config: ModelConfig) -> None:
        self.shapes = shapes
        self.config = config
        self.rules: dict[str, list[Rule]] = {}
        self._names: dict[str, str] = {}
        tied = {"lm_head.weight": "embed_tokens.weight"} if config.tie_embeddings else {}
        for rule in expand(rules_for("safetensors", config.architecture), config.num_layers).values():
            canonical = tied.get(rule.canonical, rule.canonical)
            is_looked_up = rule.canonical == "embed_tokens.weight"
            if not rule.stored.endswith(".weight") or (canonical not in shapes and not is_looked_up):
                continue
            module = rule.stored.removesuffix(".weight")
            self.rules.setdefault(module, []).append(Rule(canonical, module, rule.part))
            for prefix in HUB_PREFIXES:
                self._names[hub_name(rule.stored, prefix).removesuffix(".weight")] = module

    def named(self, name: str) -> str | None:
        """Return the module of a name as it stands in an adapter's file, without its layers' prefix; or nothing."""
        return self._names.get(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None

    def ending_in(self, name: str) -> Sequence[str]:
        """Return the modules that an entry of target_modules chooses."""
        known = (self._names[full] for full in self._names if full == name or full.endswith(f".{name}"))
        return tuple(dict.fromkeys(known))


_Halves = Mapping[str, tuple[StoredTensor, StoredTensor]]


def _halves(file: MappedFile, tensors: Mapping[str, StoredTensor], modules: _Modules) -> _Halves:
    """Pair the tensors of a file: module to A and B, all of them or an error."""
    found: dict[str, dict[str, StoredTensor]] = {}
    strange = []
    for name, tensor in tensors.items():
        matched = _HALF.fullmatch(name)
        module = modules.named(matched["module"]) if matched else None
        if matched is not None and module is not None:
            if module == "embed_tokens":
                raise CheckpointError(
                    f"{file.path}: {name}: adapters of the embedding that tokens are looked up in are not supported; "
                    "train without embed_tokens among target_modules, or merge the adapter into its base"
                )
            found.setdefault(module, {})[matched["half"]] = tensor
        elif not _is_copy(name, tensor, modules):
            strange.append(name)
    if strange:
        raise CheckpointError(
            f"{file.path} has tensors that fit no module of {modules.config.architecture} with "
            f"{modules.config.num_layers} layers: {_listed(strange)}; was it trained on another base?"
        )
    if not found:
        raise CheckpointError(f"{file.path} has no LoRA weights: nothing would change")
    alone = [next(iter(parts.values())).name for parts in found.values() if len(parts) == 1]
    if alone:
        raise CheckpointError(f"{file.path} has halves without their other half: {_listed(alone)}")
    return {module: (parts["lora_A.weight"], parts["lora_B.weight"]) for module, parts in found.items()}


def _is_copy(name: str, tensor: StoredTensor, modules: _Modules) -> bool:
    """Whether a tensor is the copy of the base's own embedding that peft saves beside an adapter of it."""
    matched = _COPIES.fullmatch(name)
    if matched is None or modules.named(matched["module"]) is None:
        return False
    return tensor.shape == (modules.config.vocab_size, modules.config.model_width)


def _refuse_gaps(path: Path, peft: PeftConfig, halves: _Halves, modules: _Modules) -> None:
    """Refuse a file that lacks what its configuration adapts."""
    missing = [
        name
        for name in peft.target_modules
        if (chosen := modules.ending_in(name)) and not any(module in halves for module in chosen)
    ]
    if missing:
        raise CheckpointError(f"{path} has no weights of modules that target_modules names: {_listed(missing)}")


def _of_module(
    path: Path, modules: _Modules, module: str, pair: tuple[StoredTensor, StoredTensor], rank: int, scale: float
) -> Mapping[str, LowRank]:
    """Read the matrices of a module, as one product or several."""
    rules = modules.rules[module]
    depth = modules.shapes[rules[0].canonical][1]
    num_cols = stored_rows(rules[0].part, modules.config) or modules.shapes[rules[0].canonical][0]
    a, b = pair
    if a.shape != (rank, depth) or b.shape != (num_cols, rank):
        raise CheckpointError(
            f"{path}: {module} has A {list(a.shape)} and B {list(b.shape)}; this model and the configured rank {rank} "
            f"want [{rank}, {depth}] and [{num_cols}, {rank}]"
        )
    whole_a, whole_b = a.float32(), b.float32()
    found = {}
    for rule in rules:
        rows = taken_rows(rule.part, modules.config)
        found[rule.canonical] = LowRank(whole_a, whole_b if rows is None else whole_b[rows], scale)
    return found


def _config_bytes(folder: Path) -> bytes:
    path = folder / CONFIG_FILE
    try:
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder}: there is no such folder; an adapter is a folder with {' and '.join(FILES)}"
            )
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise CheckpointError(f"{path}: larger than {format_bytes(MAX_CONFIG_BYTES)}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_weights_file(path: Path, shapes: Shapes, config: ModelConfig, max_rank: int) -> None:
    """Refuse a file that is not there, or that no adapter for this model can be as large as."""
    if not path.is_file():
        pickled = path.with_name("adapter_model.bin")
        hint = f"; {pickled.name} is there, but pickled weights can run code: save it as safetensors" if (
            pickled.is_file()) else ""  # fmt: skip
        raise CheckpointError(f"{path}: there is no such file{hint}")
    embeddings = 2 * config.vocab_size * config.model_width
    most = 8 * (max_rank * sum(map(sum, shapes.values())) + embeddings) + MAX_HEADER_BYTES
    if path.stat().st_size > most:
        raise CheckpointError(
            f"{path}: {format_bytes(path.stat().st_size)}; an adapter for this model of rank {max_rank} or less has at "
            f"most {format_bytes(most)}"
        )


def _too_high(peft: PeftConfig, rank: int, max_rank: int) -> CheckpointError:
    return CheckpointError(f"{peft.path}: rank {rank} is more than max_lora_rank, {max_rank}; start with a larger one")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
