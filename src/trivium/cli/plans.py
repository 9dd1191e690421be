"""`trivium plans`: the compiled plans and packed weights of the cache: what they are for, how large, how old."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError, TriviumError
from trivium.cli.flags import settle
from trivium.cli.terminal import note, table, write, write_json
from trivium.config.options import ModelOptions
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from trivium.plan.store import CachedPlan
    from trivium.runtime.packed import PackedEntry

CacheDir = Annotated[Path | None, Parameter(help="The cache; by default ~/.cache/trivium.", show_default=False)]
Json = Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A plan or a file of packed weights."""

    kind: str
    """`plan` or `weights`."""
    name: str
    model: str
    made_for: str
    """Processor and level of a plan, formats of weights."""
    num_bytes: int
    age_days: float
    state: str
    """`current`, or why it will not be used here."""
    path: str


def list_plans(*, cache_dir: CacheDir = None, json: Json = False) -> int:
    """List plans and packed weights, the most recently used first."""
    cache = _cache(cache_dir)
    entries = [entry for entry, _ in _entries(cache)]
    if json:
        write_json([_plain(entry) for entry in entries])
        return 0
    rows = [
        (e.kind, e.name, e.model, e.made_for, format_bytes(e.num_bytes), _days(e.age_days), e.state) for e in entries
    ]
    write(table(("kind", "name", "model", "for", "size", "used", "state"), rows))
    note(f"cache: {cache}, {format_bytes(sum(entry.num_bytes for entry in entries))}")
    return 0


def show_plan(
    name: Annotated[str, Parameter(help="Name of a plan, or how it begins; or a directory that holds one.")],
    /,
    *,
    cache_dir: CacheDir = None,
    json: Json = False,
) -> int:
    """Show what a plan fits and what it holds.

    Raises:
        PlanError: There is no such plan, or it cannot be used.
    """
    from trivium.plan.format import plan_file, read_plan  # noqa: PLC0415  (start-up time)
    from trivium.plan.store import PlanCache  # noqa: PLC0415

    directory = Path(name).expanduser()
    if not plan_file(directory).exists():
        directory = PlanCache(_cache(cache_dir)).find(name).directory
    stored = read_plan(directory)
    if json:
        write(plan_file(directory).read_text(encoding="utf-8"), end="")
        return 0
    plan = stored.plan
    facts: list[tuple[str, str]] = [
        ("path", str(plan_file(directory))),
        ("compiled for", stored.origin.model),
        ("compiled on", f"{stored.origin.processor}, by Trivium {stored.origin.trivium}"),
        ("instructions", ", ".join(f"{key} {len(each.instructions)}" for key, each in plan.programs.items())),
        ("buffers", str(len(plan.buffers))),
        ("weights", str(len(plan.weights))),
        ("arena", format_bytes(plan.arena_bytes)),
        *((fact, str(value)) for fact, value in stored.key.facts.items()),
    ]
    write(table(("fact", "value"), facts))
    return 0


def prune_plans(
    *,
    older_than_days: Annotated[
        float, Parameter(help="Remove also what was not used for so many days.", show_default=True)
    ] = 30.0,
    dry_run: Annotated[
        bool, Parameter(help="Only say what would be removed.", negative="", show_default=False)
    ] = False,
    cache_dir: CacheDir = None,
    json: Json = False,
) -> int:
    """Remove plans, packed weights and timings of other processors and versions, and what was long not used.

    Raises:
        ConfigError: `--older-than-days` is negative.
    """
    from trivium.compile.tuner import TuningCache  # noqa: PLC0415  (start-up time)
    from trivium.plan.machine import this_machine  # noqa: PLC0415

    if not older_than_days >= 0:
        raise ConfigError(f"--older-than-days is {older_than_days:g}; it must be at least 0")
    cache, removed, has_failed = _cache(cache_dir), [], False
    for entry, remove in _entries(cache):
        last_used = "last used today" if entry.age_days < 1 else f"not used for {_days(entry.age_days)}"
        reason = last_used if entry.state == "current" else entry.state
        if entry.state == "current" and entry.age_days < older_than_days:
            continue
        try:
            if not dry_run:
                remove()
        except TriviumError as error:
            note(f"trivium: {error}")
            has_failed = True
            continue
        removed.append((entry, reason))
    timings = TuningCache(cache, this_machine())
    machines = timings.num_others() if dry_run else timings.forget_others()
    if json:
        write_json([{**_plain(entry), "reason": reason} for entry, reason in removed])
    else:
        for entry, reason in removed:
            write(f"{entry.kind} {entry.name} of {entry.model}: {format_bytes(entry.num_bytes)}, {reason}")
        freed = format_bytes(sum(entry.num_bytes for entry, _ in removed))
        would, was = ("would free", "would be forgotten") if dry_run else ("freed", "forgotten")
        write(f"{would} {freed}; timings of {machines} other machines or kernels {was}")
    return 1 if has_failed else 0


def _entries(cache: Path) -> list[tuple[Entry, Callable[[], object]]]:
    """Return everything in the cache, each with what removes it."""
    from trivium.compile.version import compiler_version  # noqa: PLC0415  (start-up time)
    from trivium.kernels import native  # noqa: PLC0415
    from trivium.plan.machine import this_machine  # noqa: PLC0415
    from trivium.plan.store import PlanCache  # noqa: PLC0415
    from trivium.runtime.packed import PackedCache  # noqa: PLC0415

    plans, packed, machine = PlanCache(cache), PackedCache(cache), this_machine()
    layout = None
    if native.describe().is_present:
        from trivium.kernels.linear import Packer  # noqa: PLC0415  (needs the native module)

        layout = Packer().layout
    found_plans = [
        (_plan_entry(plan, plan.is_foreign(machine, compiler_version())), partial(plans.remove, plan))
        for plan in plans.entries()
    ]
    return [*found_plans, *((_weights_entry(file, layout), partial(packed.remove, file)) for file in packed.entries())]


def _plan_entry(plan: CachedPlan, foreign: str | None) -> Entry:
    stored = plan.stored
    return Entry(
        kind="plan",
        name=plan.name,
        model=stored.origin.name if stored else "-",
        made_for=f"{stored.origin.processor}, {stored.key['isa']}" if stored else "-",
        num_bytes=plan.num_bytes,
        age_days=plan.age_days,
        state=foreign or "current",
        path=str(plan.directory),
    )


def _weights_entry(weights: PackedEntry, layout: str | None) -> Entry:
    header = weights.header
    formats = dict.fromkeys(tensor.format for tensor in header.tensors) if header else {}
    foreign = weights.is_foreign(layout) if layout is not None else None
    return Entry(
        kind="weights",
        name=weights.name,
        model=header.model if header else "-",
        made_for=", ".join(formats) or "-",
        num_bytes=weights.num_bytes,
        age_days=weights.age_days,
        state=foreign or "current",
        path=str(weights.path),
    )


def _plain(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__slots__}


def _days(days: float) -> str:
    if days < 1:
        return "today"
    return "1 day" if days < 2 else f"{int(days)} days"  # noqa: PLR2004


def _cache(flag: Path | None) -> Path:
    from trivium.weights.store import cache_directory  # noqa: PLC0415  (start-up time)

    flags = {} if flag is None else {"cache_dir": str(flag)}
    return cache_directory(settle((ModelOptions,), flags)["cache_dir"])
