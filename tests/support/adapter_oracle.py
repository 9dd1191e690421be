"""Peft as the oracle: drawn adapters upon golden models, and the logits and greedy tokens of both together.

Needs torch, transformers and peft; imported by the oracle tests and `tools/make_adapter_goldens.py` only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

from support.adapter_cases import AdapterCase
from support.golden import MODELS
from support.golden_cases import CASES
from support.oracle import LEAST_MARGIN, Answer, answer, prompts

LEAST_CHANGE = 0.1
"""Least distance of an adapted model's logits from the base's."""


def load_base(name: str) -> Any:
    """Load a golden model in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        MODELS / name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def draw_adapted(case: AdapterCase) -> tuple[Any, list[Answer]]:
    """Draw adapters from the case's seed on until no greedy token is close to another."""
    base_case = next(each for each in CASES if each.name == case.base)
    plain = [answer(load_base(case.base), *each) for each in prompts(base_case)]
    for seed in range(case.seed, case.seed + 100_000, 1000):
        model = peft.get_peft_model(load_base(case.base), peft.LoraConfig(task_type="CAUSAL_LM", **case.settings))
        draw_matrices(model, case, seed)
        answers = [answer(model.eval(), *each) for each in prompts(base_case)]
        if min(each.margin for each in answers) > LEAST_MARGIN:
            for before, after in zip(plain, answers, strict=True):
                assert np.abs(before.logits - after.logits).max() > LEAST_CHANGE, f"{case.name} changes next to nothing"
            return model, answers
    raise AssertionError(f"{case.name}: no seed gives clear greedy tokens")


def draw_matrices(model: Any, case: AdapterCase, seed: int) -> None:
    """Fill A and B so that an adapter changes logits by about as much as a layer does."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                noise = torch.from_numpy(random.standard_normal(tuple(weight.shape), np.float32))
                gain = weight.shape[-1] ** -0.5 if "lora_A" in name else 0.2
                weight.copy_((gain * noise).to(getattr(torch, case.stored)))


def save_adapter(model: Any, case: AdapterCase, directory: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors in the case's type, as peft does."""
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(getattr(torch, case.stored))
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = case.base  # not the folder of whoever made it
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2) + "\n")
