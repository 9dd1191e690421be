"""What a plan fits: the facts that it was made from, one by one, so that two keys can say in what they differ.

A plan depends on shapes and formats, never on the values of weights: checkpoints that agree in these facts share it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from trivium.config.model import ModelConfig, RopeConfig
from trivium.plan.program import PLAN_VERSION, KVStorage, Limits

Fact = str | int | float | bool | None

NOT_IN_PLANS = ("max_positions", "bos_token_id", "eos_token_ids")
"""Fields of a model's configuration that no plan depends on: schedule and text know them."""

_SHOWN = 8
_PREFIX_DIGITS = 16
_NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class PlanKey:
    """The facts, by name, in the order in which people should see them."""

    facts: Mapping[str, Fact]

    @property
    def digest(self) -> str:
        """Identity of the facts: 64 hexadecimal digits."""
        canonical = json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()

    @property
    def name(self) -> str:
        """What the plan's directory in the cache is called."""
        return self.digest[:_PREFIX_DIGITS]

    def __getitem__(self, name: str) -> Fact:
        return self.facts.get(name)


def plan_key(
    config: ModelConfig,
    formats: Mapping[str, str],
    kv: KVStorage,
    limits: Limits,
    *,
    activation_group: int,
    isa: str,
    kernels: str,
    compiler: str,
) -> PlanKey:
    """Collect the facts.

    Args:
        config: The model's shape.
        formats: Parameter to the format in which its weight is stored.
        kv: How keys and values lie in memory.
        limits: The largest step.
        activation_group: Values of an activation that share a scale, where the weights' formats let them.
        isa: Instruction-set level of the kernels.
        kernels: Version of the kernels.
        compiler: Version of the definitions and passes.
    """
    facts: dict[str, Fact] = {"plan_version": PLAN_VERSION, "compiler": compiler, "kernels": kernels, "isa": isa}
    facts["activation_group"] = activation_group
    facts |= {field.name: getattr(limits, field.name) for field in fields(limits)}
    for field in fields(config):
        if field.name != "layers" and field.name not in NOT_IN_PLANS:
            facts[field.name] = getattr(config, field.name)
    for name in ("window", "rope"):
        facts[f"layers.{name}"] = _runs((layer, _text(getattr(each, name))) for layer, each in enumerate(config.layers))
    facts |= {"kv.dtype": kv.dtype, "kv.page_len": kv.spec.page_len}
    for idx, group in enumerate(kv.spec.groups):
        layers = _runs((layer, "") for layer in sorted(group.layers))
        facts[f"kv.group_{idx}"] = f"{group.kind} {_text(group.window)}, layers {layers}"
    return PlanKey(facts | _format_facts(formats))


def differences(compiled: PlanKey, asked: PlanKey) -> tuple[str, ...]:
    """Say in what a plan differs from what was asked: `max_num_batched_tokens 512, asked 1024`, one text a fact."""
    names = dict.fromkeys((*compiled.facts, *asked.facts))
    return tuple(
        f"{name} {_text(compiled[name])}, asked {_text(asked[name])}"
        for name in names
        if (compiled[name], name in compiled.facts) != (asked[name], name in asked.facts)
    )


def listed(texts: Iterable[str]) -> str:
    """Join differences for a message, the first few of them."""
    texts = list(texts)
    more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def _format_facts(formats: Mapping[str, str]) -> dict[str, Fact]:
    """One fact for each parameter's name without its layer: `formats.layers.*.mlp.up_proj.weight: 0-29 q4_k`."""
    layered: dict[str, list[tuple[int, str]]] = {}
    facts: dict[str, Fact] = {}
    for name, stored in formats.items():
        found = _NUMBER.search(name)
        if found is None:
            facts[f"formats.{name}"] = stored
        else:
            pattern = name[: found.start(1)] + "*" + name[found.end(1) :]
            layered.setdefault(pattern, []).append((int(found[1]), stored))
    facts |= {f"formats.{pattern}": _runs(sorted(layers)) for pattern, layers in layered.items()}
    return dict(sorted(facts.items()))


def _runs(numbered: Iterable[tuple[int, str]]) -> str:
    """Write what holds of which numbers: `0-4 full, 5 window`."""
    # Neighbours with one text have one difference of number and place.
    placed = ((number - place, text, number) for place, (number, text) in enumerate(numbered))
    texts = []
    for (_, text), run in groupby(placed, key=lambda each: each[:2]):
        numbers = [number for *_, number in run]
        span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        texts.append(f"{span} {text}".rstrip())
    return ", ".join(texts)


def _text(value: Any) -> str:
    if isinstance(value, RopeConfig):
        said = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        return "(" + " ".join(f"{name}={found}" for name, found, default in said if found != default) + ")"
    return "none" if value is None else str(value)
