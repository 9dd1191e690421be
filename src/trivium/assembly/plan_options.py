"""The options under which a plan that lies in a directory can be run: its limits, its formats, its model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from trivium.assembly.model import open_model
from trivium.assembly.native import NativeParts
from trivium.base.errors import ConfigError
from trivium.plan.program import WIDE_GROUP
from trivium.plan.store import open_named_plan
from trivium.weights.quantize import WeightsChoice

if TYPE_CHECKING:
    from pathlib import Path

    from trivium.assembly.model import OpenModel
    from trivium.config.options import EngineOptions
    from trivium.plan.format import StoredPlan

_KV_NAMES: dict[str, Literal["f32", "bf16", "int8"]] = {"f32": "f32", "bf16": "bf16", "i8": "int8"}


def options_of_plan(options: EngineOptions, stored: StoredPlan, directory: Path, *, keeps_model: bool) -> EngineOptions:
    """Return options whose limits and KV type are the plan's, and whose plan is this one.

    Args:
        options: All others are taken from here.
        stored: The plan.
        directory: Where it lies.
        keeps_model: Whether to run the model of `options` instead of the one that the plan was compiled for.
    """
    limits = stored.plan.limits
    model = options.model if keeps_model else replace(options.model, model=stored.origin.model)
    return replace(
        options,
        model=model,
        cache=replace(
            options.cache, page_len=stored.plan.kv.spec.page_len, kv_cache_dtype=_KV_NAMES[stored.plan.kv.dtype]
        ),
        schedule=replace(
            options.schedule,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_logit_rows,
        ),
        compile=replace(options.compile, plan=directory),
    )


def parts_of_plan(
    options: EngineOptions, stored: StoredPlan, directory: Path, *, keeps_model: bool
) -> tuple[OpenModel, NativeParts]:
    """Open the model that a plan is run with, its weights in the formats that the plan has.

    Raises:
        ModelError: The model cannot be found or understood.
        PlanMismatchError: No choice of weight formats makes it fit.
    """
    own = options_of_plan(options, stored, directory, keeps_model=keeps_model)
    model = open_model(own)
    choices: tuple[WeightsChoice, ...] = get_args(WeightsChoice)
    group: Literal["32", "64"] = "64" if stored.key["activation_group"] == WIDE_GROUP else "32"
    for choice in choices:
        executor = replace(own.executor, weights=choice, activation_group=group)
        try:
            parts = NativeParts(replace(own, executor=executor), model)
        except ConfigError:  # these weights have no groups of 64
            continue
        if parts.key.digest == stored.key.digest:
            return model, parts
    parts = NativeParts(own, model)
    open_named_plan(directory, parts.key)  # which says why not
    return model, parts
