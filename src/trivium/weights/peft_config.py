"""`adapter_config.json` of a PEFT checkpoint: what it asks for, and what of that is refused by name.

Every key is either read, harmless, or refused where it asks for something: an adapter whose configuration says more
than what is done here would answer differently from the model that was trained.

Source: the LoRA configuration of the peft library; Hu et al. 2021, LoRA, section 4.1; Kalajdzievski 2023, rsLoRA.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trivium.base.errors import CheckpointError

MAX_CONFIG_BYTES = 4 * 1024 * 1024
"""Largest adapter_config.json that is read."""

_HARMLESS = frozenset({
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "exclude_modules", "target_modules",
    "megatron_core", "runtime_config", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "init_lora_weights", "bias", "eva_config", "qalora_group_size", "ensure_weight_tying",
})  # fmt: skip
"""Keys that are read below, or that say where weights came from and how they were trained, not what they mean."""
_MERGE = "merge it into its base with peft's merge_and_unload, and serve the result as a model"
_REFUSED: Mapping[str, str] = {
    "use_dora": f"DoRA scales the base weights themselves, which is not supported; {_MERGE}",
    "modules_to_save": f"it brings whole modules of its own, which is not supported; {_MERGE}",
    "trainable_token_indices": f"it brings embeddings of its own for some tokens, which is not supported; {_MERGE}",
    "lora_bias": f"biases of B are not supported; {_MERGE}",
    "target_parameters": f"adapters of single parameters (experts) are not supported; {_MERGE}",
    "layer_replication": "a model whose layers are repeated is another model than the one served here",
    "alora_invocation_tokens": "adapters that begin in the middle of a prompt (aLoRA) are not supported",
}
"""Keys that are refused where they ask for anything, and why."""
_PLAIN_INITS = frozenset({"true", "false", "gaussian", "eva", "orthogonal"})
"""Ways to initialize that leave the base weights as they are."""
_DIGITS = r"\d+"


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What a LoRA configuration means for its weights."""

    path: Path
    rank: int
    alpha: float
    is_rank_stabilized: bool
    """Whether the scale is alpha over the square root of the rank (rsLoRA)."""
    target_modules: Sequence[str]
    """Names of modules, or ends of them; empty where a pattern chooses them."""
    base_model: str | None
    """What it was trained on, as the file says."""
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's matrices; `module` is its full name in the base."""
        return int(_matched(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Return the factor on the product of a module's matrices."""
        rank, alpha = self.rank_of(module), _matched(self.alpha_pattern, module, self.alpha)
        return float(alpha / (rank**0.5 if self.is_rank_stabilized else rank))


def read_peft_config(path: Path, content: bytes) -> PeftConfig:
    """Read a configuration.

    Args:
        path: Where it comes from, for messages.
        content: The file's bytes.

    Raises:
        CheckpointError: It is not one of LoRA, malformed, or asks for what is not done here; the message says which
            key.
    """
    values = _object(path, content)
    kind = values.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type is {_shown(kind)}; only LORA adapters can be loaded")
    _refuse_unsupported(path, values)
    return PeftConfig(
        path=path,
        rank=_rank(path, "r", values.get("r", 8)),
        alpha=_number(path, "lora_alpha", values.get("lora_alpha", 8)),
        is_rank_stabilized=_flag(path, "use_rslora", values.get("use_rslora", False)),
        target_modules=_targets(path, values.get("target_modules")),
        base_model=_text(values.get("base_model_name_or_path")),
        rank_pattern={key: _rank(path, f"rank_pattern['{key}']", value)
                      for key, value in _pattern(path, values, "rank_pattern").items()},
        alpha_pattern={key: _number(path, f"alpha_pattern['{key}']", value)
                       for key, value in _pattern(path, values, "alpha_pattern").items()},
    )  # fmt: skip


def _object(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: a JSON {type(values).__name__}, it must be an object")
    return values


def _refuse_unsupported(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in _HARMLESS or not value:
            continue
        why = _REFUSED.get(name, "what that key means for the weights is not known here")
        raise CheckpointError(f"{path}: {name} is {_shown(value)}: {why}")
    if values.get("bias", "none") != "none":
        raise CheckpointError(f"{path}: bias is {_shown(values['bias'])}: trained biases are not supported; {_MERGE}")
    how = str(values.get("init_lora_weights", True)).lower()
    if how not in _PLAIN_INITS:
        raise CheckpointError(
            f"{path}: init_lora_weights is {_shown(how)}: it changes the base weights, so the adapter fits no "
            "unchanged base; save it with path_initial_model_for_weight_conversion, which makes it a plain one"
        )


def _targets(path: Path, value: Any) -> Sequence[str]:
    if value is None or isinstance(value, str):
        return ()
    if isinstance(value, list) and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    raise CheckpointError(f"{path}: target_modules is {_shown(value)}; it must be a list of names, or a pattern")


def _pattern(path: Path, values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name) or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: {name} is {_shown(found)}; it must be an object")
    for key in found:
        if not re.fullmatch(r"\^?(?:[\w.]|\\\.|\\d\+)+", key):
            # They are regular expressions, which a file must not run here: some take for ever.
            raise CheckpointError(
                f"{path}: {name} has the key '{key[:80]}'; keys may be names of modules, with \\d+ for numbers"
            )
    return found


def _matched(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first pattern that a module's name, or the end of it after a dot, is."""
    for key, value in patterns.items():
        if re.fullmatch(rf"(?:.*\.)?(?:{_as_regex(key.removeprefix('^'))})", module) and (
            not key.startswith("^") or re.match(_as_regex(key[1:]), module)
        ):
            return value
    return default


def _as_regex(key: str) -> str:
    pieces = (re.escape(piece.replace("\\.", ".")) for piece in key.split(_DIGITS))
    return _DIGITS.join(pieces)


def _rank(path: Path, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 20:
        raise CheckpointError(f"{path}: {name} is {_shown(value)}; a rank is a whole number from 1")
    return value


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e9:  # noqa: PLR2004
        raise CheckpointError(f"{path}: {name} is {_shown(value)}; it must be a number")
    return float(value)


def _flag(path: Path, name: str, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise CheckpointError(f"{path}: {name} is {_shown(value)}; it must be true or false")


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _shown(value: Any) -> str:
    return str(value)[:80]
