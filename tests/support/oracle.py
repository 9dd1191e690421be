"""Transformers as the oracle: tiny random models, and logits and greedy tokens under one request's rope table.

Needs torch and transformers; imported by the oracle tests and `tools/make_goldens.py` only.

Transformers chooses dynamic and longrope frequencies by the largest position of the forward pass; Trivium by the
request's reach. Both agree when the sequence is filled up to its reach: attention is causal, so the filling changes
no earlier row.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from transformers.utils import logging as transformers_logging

from support.golden_cases import GREEDY_TOKENS, LONG_PROMPT, ORIGINAL_POSITIONS, SHORT_PROMPT, VOCAB_SIZE, GoldenCase

if TYPE_CHECKING:
    from numpy.typing import NDArray

transformers_logging.set_verbosity_error()
transformers_logging.disable_progress_bar()

LEAST_MARGIN = 2e-3
"""Least distance of the two largest logits wherever a greedy token is compared; closer draws are drawn again."""
FILLER = 3
ROWS_FROM_END = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What the oracle says of one prompt."""

    prompt: tuple[int, ...]
    reach: int
    rows: tuple[int, ...]
    """Positions whose logits are kept."""
    logits: NDArray[np.float32]
    """[rows, V]."""
    greedy: tuple[int, ...]
    margin: float
    """Least distance of the two largest logits over the greedy tokens."""


def draw_model(case: GoldenCase, seed: int) -> Any:
    """Make the case's model with weights at fan-in scale, so that logits have a standard deviation of 1 to 6."""
    config = getattr(transformers, case.config_class)(**_with_tiny_vision(case))
    config._attn_implementation = "eager"
    model_class = transformers.Gemma3ForConditionalGeneration if "text_config" in case.config else None
    model = model_class(config) if model_class else transformers.AutoModelForCausalLM.from_config(config)
    random = np.random.default_rng(seed)  # NumPy's normal numbers have the same bits on every processor
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = _drawn(name, weight, random, is_gemma="Gemma" in case.config_class)
            # Only weights are rounded: rope's buffers stay float32, as when a bf16 checkpoint is loaded.
            weight.copy_(drawn.to(getattr(torch, case.stored)))
    return model.eval()


def _with_tiny_vision(case: GoldenCase) -> dict[str, Any]:
    config = copy.deepcopy(case.config)
    if "text_config" not in config:
        return config
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    outer = {key: config[key] for key in ("text_config", "image_token_index")}
    vision = {**sizes, "image_size": 8, "patch_size": 8}
    return {**outer, "vision_config": vision, "mm_tokens_per_image": 1, "boi_token_index": 253, "eoi_token_index": 254}


def _drawn(name: str, weight: torch.Tensor, random: np.random.Generator, *, is_gemma: bool) -> torch.Tensor:
    noise = torch.from_numpy(random.standard_normal(tuple(weight.shape), np.float32))
    if name.endswith("bias"):
        return 0.5 * noise
    if weight.ndim == 1:
        return 0.2 * noise + (0.0 if is_gemma else 1.0)
    gain = 3.0 if "embed_tokens" in name or "lm_head" in name else 1.3
    return gain * noise / weight.shape[-1] ** 0.5


def prompts(case: GoldenCase) -> list[tuple[tuple[int, ...], int]]:
    """Return (prompt, reach) pairs: short, long, and where rope asks reach, short with a long reach."""
    random = np.random.default_rng(case.seed)
    short = tuple(int(token) for token in random.integers(4, VOCAB_SIZE - 8, SHORT_PROMPT))
    long = tuple(int(token) for token in random.integers(4, VOCAB_SIZE - 8, LONG_PROMPT))
    pairs = [(short, SHORT_PROMPT + GREEDY_TOKENS), (long, LONG_PROMPT + GREEDY_TOKENS)]
    rope = case.config.get("rope_parameters", {})
    if rope.get("rope_type") in {"dynamic", "longrope"}:
        pairs += [(short, ORIGINAL_POSITIONS), (short, 3 * ORIGINAL_POSITIONS)]
    return pairs


def answer(model: Any, prompt: Sequence[int], reach: int) -> Answer:
    """Ask the oracle for logits and greedy tokens of a request that may grow to `reach` tokens."""
    tokens = list(prompt)
    first = _logits(model, tokens, reach)
    rows = range(max(0, len(prompt) - ROWS_FROM_END), len(prompt))
    logits, margin = first, np.inf
    for _ in range(GREEDY_TOKENS):
        second_best, best = np.sort(logits[-1])[-2:]
        margin = min(margin, float(best - second_best))
        tokens.append(int(logits[-1].argmax()))
        if len(tokens) < len(prompt) + GREEDY_TOKENS:
            logits = _logits(model, tokens, reach)
    return Answer(tuple(prompt), reach, tuple(rows), first[list(rows)], tuple(tokens[len(prompt) :]), margin)


def _logits(model: Any, tokens: Sequence[int], reach: int) -> NDArray[np.float32]:
    """[tokens, V]; a fresh copy of the model, because its rope remembers the longest sequence that it saw."""
    filled = [*tokens, *[FILLER] * (reach - len(tokens))]
    with torch.no_grad():
        found = copy.deepcopy(model)(input_ids=torch.tensor([filled]), use_cache=False).logits
    return found[0, : len(tokens)].numpy()


def draw_with_margin(case: GoldenCase) -> tuple[Any, list[Answer]]:
    """Draw models from the case's seed on until no greedy token is close to another."""
    for seed in range(case.seed, case.seed + 100_000, 1000):
        model = draw_model(case, seed)
        answers = [answer(model, prompt, reach) for prompt, reach in prompts(case)]
        if min(each.margin for each in answers) > LEAST_MARGIN:
            return model, answers
    raise AssertionError(f"{case.name}: no seed gives clear greedy tokens")


def save(model: Any, case: GoldenCase, directory: Path) -> None:
    """Write config.json and model.safetensors in the case's type."""
    stored = copy.deepcopy(model).to(getattr(torch, case.stored))
    stored.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)


def arrays_of(answers: Sequence[Answer]) -> dict[str, NDArray[Any]]:
    """Write answers as the arrays that `golden.golden_answers` reads."""
    arrays: dict[str, NDArray[Any]] = {}
    for index, each in enumerate(answers):
        arrays[f"prompt_{index}"] = np.array(each.prompt, np.int32)
        arrays[f"reach_{index}"] = np.array(each.reach, np.int32)
        arrays[f"rows_{index}"] = np.array(each.rows, np.int32)
        arrays[f"logits_{index}"] = each.logits.astype(np.float32)
        arrays[f"greedy_{index}"] = np.array(each.greedy, np.int32)
    return arrays
