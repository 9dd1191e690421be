"""How a plan is come by: the one that was named, or the cache's, with the tactics that this machine has timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trivium.compile.tuner import TuneLevel, Tuning, TuningCache, tune
from trivium.plan.cost import MachineLimits
from trivium.plan.machine import measure_limits, this_machine
from trivium.plan.store import HeldPlan, PlanCache, open_named_plan
from trivium.weights.store import cache_directory

if TYPE_CHECKING:
    from trivium.compile.tuner.measure import Bench
    from trivium.compile.tuner.search import OnCase
    from trivium.config.options import EngineOptions
    from trivium.plan.format import Origin
    from trivium.plan.key import PlanKey
    from trivium.plan.program import Plan


@dataclass(frozen=True, slots=True)
class _NoBench:
    """Stands in where nothing is timed."""

    def prepare(self, case: object) -> None:
        """Never called: a budget of nothing times nothing."""


def obtain_plan(options: EngineOptions, key: PlanKey, origin: Origin, build: Callable[[], Plan]) -> HeldPlan:
    """Return the plan that a model is run with.

    Args:
        options: Whether a plan was named, whether to tune, where the cache is.
        key: What it must fit.
        origin: Said of a plan that is compiled now.
        build: Compiles it.

    Raises:
        PlanMismatchError: A plan was named that does not fit.
        PlanError: A plan was named that cannot be read.
    """
    named = options.compile.plan
    if named is not None:
        return HeldPlan(stored=open_named_plan(named, key), directory=named, build_seconds=0.0)
    held = PlanCache(cache_directory(options.model.cache_dir)).load_or_build(key, origin, build)
    level: TuneLevel = "off" if options.compile.tune == "auto" else options.compile.tune
    return tune_plan(options, held, level)[0]


def tune_plan(
    options: EngineOptions, held: HeldPlan, level: TuneLevel, *, on_case: OnCase | None = None
) -> tuple[HeldPlan, Tuning]:
    """Choose tactics: those that are known for this machine, and, unless `level` is off, others by timing them.

    A plan whose tactics were timed now is written back to the cache; what is merely known is looked up at every start,
    so that a plan from another machine with the same instruction set never brings its timings along.
    """
    cache = cache_directory(options.model.cache_dir)
    tuning = tune(held.plan, TuningCache(cache, this_machine()), _bench(level), level, on_case=on_case)
    stored = replace(held.stored, plan=tuning.plan)
    directory = held.directory
    if tuning.num_timed and stored != held.stored:
        directory = PlanCache(cache).keep(stored)
    return replace(held, stored=stored, directory=directory), tuning


def machine_limits(options: EngineOptions, *, is_fresh: bool) -> MachineLimits:
    """Return what this machine does at most.

    Args:
        options: Where the cache is.
        is_fresh: Whether to measure now, as what is compared with a timing must be: a machine has moods. Otherwise
            what was measured last is good enough.

    Raises:
        ConfigError: It is to be measured, and the native kernels are missing.
    """
    cache = TuningCache(cache_directory(options.model.cache_dir), this_machine())
    known = None if is_fresh else cache.limits()
    if known is None:
        known = measure_limits()
        cache.keep_limits(known)
    return known


def _bench(level: TuneLevel) -> Bench:
    if level == "off":
        return _NoBench()  # type: ignore[return-value]  # nothing is prepared
    from trivium.assembly.product_bench import ProductBench  # noqa: PLC0415  (only where something is timed)

    return ProductBench()
