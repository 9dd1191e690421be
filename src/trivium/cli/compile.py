"""`trivium compile`: make a model's plan, tune it, pack its weights, so that later starts find everything."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from trivium.base.errors import ConfigError
from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.terminal import fetching, note, write, write_json
from trivium.config.options import EngineOptions, ScheduleOptions
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trivium.compile.tuner import Case

_ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What compiling one model came to."""

    model: str
    plan: str
    plan_path: Path | None
    """`None` when the cache could not be written."""
    was_compiled: bool
    compile_seconds: float
    num_instructions: int
    num_fused: int
    arena_bytes: int
    num_products: int
    """Distinct products at distinct numbers of rows."""
    num_timed: int
    num_known: int
    num_left: int
    tune_seconds: float
    weights_path: Path | None
    weight_bytes: int
    packing_seconds: float


@flags_of(EngineOptions, without=("model", "plan"), aside=(ScheduleOptions,))
def compile_models(
    *models: Annotated[str, Parameter(help="Models, as for serve; the default model when there is none.")],
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="Directory to write the plan to as well.", show_default=False),
    ] = None,
    print_after: Annotated[
        str | None,
        Parameter(
            help="Print the graph after this pass, or after each (all), instead of compiling.", show_default=False
        ),
    ] = None,
    program: Annotated[
        Literal["base", "adapters"], Parameter(help="Which of a plan's programs --print-after shows.")
    ] = "base",
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Compile models: passes, memory plan, tactics that are timed, packed weights. All of it is kept in the cache.

    Raises:
        ConfigError: An option has a bad value, or the native executor cannot run here.
        ModelError: A model cannot be found, fetched or understood.
    """
    wanted: Sequence[str | None] = models or (None,)
    if output is not None and len(wanted) > 1:
        raise ConfigError(f"--output is one directory, and there are {len(wanted)} models; compile them one by one")
    each = [settle((EngineOptions,), flags, config=config, model=name).build(EngineOptions) for name in wanted]
    if print_after is not None:
        for options in each:
            print_passes(options, print_after, program)
        return 0
    found = [compile_model(options, output) for options in each]
    if json:
        write_json([asdict(one) for one in found])
    else:
        write("\n".join(_describe(one) for one in found))
        write(_total(found))
    return 0


def print_passes(options: EngineOptions, wanted: str, program: Literal["base", "adapters"]) -> None:
    """Print the graph after one pass or after each.

    Raises:
        ConfigError: There is no such pass; the message lists them.
    """
    from trivium.assembly.native import NativeParts  # noqa: PLC0415  (start-up time)
    from trivium.compile.formats import format_named  # noqa: PLC0415
    from trivium.compile.options import PassOptions  # noqa: PLC0415
    from trivium.compile.pipeline import BEFORE, PASSES, run_passes  # noqa: PLC0415
    from trivium.ir.printer import to_text  # noqa: PLC0415

    names = {_slug(name): name for name in (BEFORE, *(each.name for each in PASSES))}
    if wanted != _ALL and _slug(wanted) not in names:
        raise ConfigError(f"--print-after is '{wanted}'; it must be {_ALL} or one of {', '.join(names)}")
    parts = NativeParts(options, _open(options))
    formats = {name: format_named(known) for name, known in parts.formats.items()}

    def show(name: str, graph: Any) -> None:
        if wanted == _ALL or _slug(name) == _slug(wanted):
            write(f"# {program}: {'as it came' if name == BEFORE else f'after {name}'}\n{to_text(graph)}")

    run_passes(parts.graph, PassOptions(formats, has_adapters=program == "adapters"), on_pass=show)


def compile_model(options: EngineOptions, output: Path | None) -> Compiled:
    """Compile one model, tune it, pack its weights.

    Raises:
        ConfigError: The native executor cannot run here.
        PlanError: `output` cannot be written.
    """
    from trivium.assembly.choice import native_obstacle  # noqa: PLC0415  (start-up time)
    from trivium.assembly.compiled import tune_plan  # noqa: PLC0415
    from trivium.assembly.native import NativeParts  # noqa: PLC0415
    from trivium.kernels.native import set_num_threads  # noqa: PLC0415
    from trivium.plan.format import plan_file, write_plan  # noqa: PLC0415
    from trivium.plan.vocabulary import FUSED  # noqa: PLC0415

    obstacle = native_obstacle(options)
    if obstacle is not None:
        raise ConfigError(f"a plan is run by the native executor, which cannot run: {obstacle}")
    if options.executor.threads is not None:
        set_num_threads(options.executor.threads)
    model = _open(options)
    untuned = replace(options, compile=replace(options.compile, tune="off"))
    parts = NativeParts(untuned, model)
    level = "quick" if options.compile.tune == "auto" else options.compile.tune
    held, tuning = tune_plan(options, parts.held, level, on_case=_tell)
    for rejected in tuning.rejected:
        note(f"trivium: warning: {rejected} gives other bits than the rule's choice and is not used; please report it")
    packed = parts.packed(lambda stage, done, total: None)
    directory = held.directory
    if output is not None:
        directory = write_plan(held.stored, output).parent
    instructions = held.plan.programs["base"].instructions
    return Compiled(
        model=model.name,
        plan=held.stored.key.name,
        plan_path=None if directory is None else plan_file(directory),
        was_compiled=held.was_built,
        compile_seconds=round(held.build_seconds, 3),
        num_instructions=len(instructions),
        num_fused=sum(each.op in FUSED for each in instructions),
        arena_bytes=held.plan.arena_bytes,
        num_products=tuning.num_cases,
        num_timed=tuning.num_timed,
        num_known=tuning.num_known,
        num_left=tuning.num_left,
        tune_seconds=round(tuning.seconds, 3) if tuning.num_timed else 0.0,
        weights_path=packed.path,
        weight_bytes=packed.num_bytes,
        packing_seconds=round(packed.build_seconds, 3),
    )


def _open(options: EngineOptions) -> Any:
    from trivium.assembly.model import open_model  # noqa: PLC0415  (start-up time)
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415

    with fetching() as progress:
        resolve_model(options.model, progress=progress)
    return open_model(options)


def _tell(case: Case, number: int, total: int) -> None:
    import sys  # noqa: PLC0415  (only where there is somebody to tell)

    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[Ktuning {number + 1} of {total}: {case}" + ("\n" if number + 1 == total else ""))
        sys.stderr.flush()


def _describe(one: Compiled) -> str:
    came = f"compiled in {one.compile_seconds:.2f} s" if one.was_compiled else "found"
    packed = f"packed in {one.packing_seconds:.2f} s" if one.packing_seconds else "found"
    tuned = f"{one.num_timed} products timed in {one.tune_seconds:.1f} s, {one.num_known} known, {one.num_left} by rule"
    return (
        f"{one.model}\n"
        f"  plan     {one.plan_path or 'in memory only'}, {came}\n"
        f"           {one.num_instructions} instructions, {one.num_fused} of them fused; 2 native calls per step; "
        f"arena {format_bytes(one.arena_bytes)}\n"
        f"  tactics  {tuned}\n"
        f"  weights  {one.weights_path or 'in memory only'}, {packed}, {format_bytes(one.weight_bytes)}"
    )


def _total(found: Sequence[Compiled]) -> str:
    compiled = [one for one in found if one.was_compiled]
    packed = [one for one in found if one.packing_seconds]
    seconds = sum(one.compile_seconds + one.packing_seconds + one.tune_seconds for one in found)
    return (
        f"total: {len(found)} {'model' if len(found) == 1 else 'models'}, {len(compiled)} compiled in "
        f"{sum(one.compile_seconds for one in compiled):.2f} s, {len(packed)} packed in "
        f"{sum(one.packing_seconds for one in packed):.2f} s, tuning {sum(one.tune_seconds for one in found):.2f} s; "
        f"{seconds:.2f} s in all"
    )


def _slug(name: str) -> str:
    return name.replace(" ", "-").replace("_", "-").lower()
