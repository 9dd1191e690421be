"""`trivium explain`: what a plan does, by instruction: shapes, tactics, bytes, least time, measured time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from trivium.base.errors import ConfigError, ModelError, PlanError
from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.targets import PlanTarget, open_target
from trivium.cli.terminal import note, write
from trivium.config.options import EngineOptions, ScheduleOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trivium.assembly.native import NativeParts
    from trivium.config.resolve import Settings
    from trivium.plan.cost import Workload
    from trivium.plan.format import StoredPlan
    from trivium.plan.program import Plan

_TOKENS = (1, 16, 64, 512)
_ROUNDS = 7


@flags_of(EngineOptions, without=("plan",), aside=(ScheduleOptions,))
def explain(
    target: PlanTarget = None,
    /,
    *,
    html: Annotated[
        Path | None,
        Parameter(help="Write a page with pictures of program and arena to this file.", show_default=False),
    ] = None,
    each: Annotated[
        bool, Parameter(help="One row for every instruction, also where layers are alike.", negative="")
    ] = False,
    tokens: Annotated[
        str | None,
        Parameter(
            help="Tokens of the steps, such as 1,16: one of each request, or a prompt where a step cannot have so many"
            " requests. By default 1,16,64,512, as far as the plan allows.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[int, Parameter(help="Tokens of context of every request that decodes.")] = 128,
    measure: Annotated[bool, Parameter(help="Also time every instruction, which needs the weights.")] = True,
    program: Annotated[Literal["base", "adapters"], Parameter(help="Which of the plan's programs.")] = "base",
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Explain a plan: of a model, or of a directory that trivium compile wrote.

    Raises:
        PlanError: The directory holds no plan that can be used.
        ConfigError: A step that was asked for is larger than the plan allows.
    """
    from trivium.assembly.compiled import machine_limits  # noqa: PLC0415  (start-up time)
    from trivium.plan.explain import explain as explain_plan  # noqa: PLC0415
    from trivium.plan.explain_page import explanation_page  # noqa: PLC0415
    from trivium.plan.explain_text import explanation_text  # noqa: PLC0415

    settings = settle((EngineOptions,), flags, config=config)
    stored, parts = _find(target, settings, is_measured=measure and program == "base")
    loads = choose_loads(stored.plan, _numbers(tokens), context)
    limits = machine_limits(settings.build(EngineOptions), is_fresh=parts is not None)
    measured = time_loads(parts, loads) if parts is not None else {}
    found = explain_plan(stored.plan, loads, limits, measured, program=program, is_grouped=not each)
    write(f"# {stored.plan.architecture}, {stored.origin.name}, plan {stored.key.name}\n")
    write(explanation_text(found))
    if html is not None:
        html.write_text(explanation_page(stored, found), encoding="utf-8")
        note(f"written: {html}")
    return 0


def choose_loads(plan: Plan, tokens: Sequence[int], context: int) -> list[Workload]:
    """Turn numbers of tokens into steps that the plan can run.

    Raises:
        ConfigError: A number is not one of tokens of a step of this plan.
    """
    from trivium.plan.cost import chunk, decode  # noqa: PLC0415  (start-up time)

    most, most_rows = plan.limits.max_num_batched_tokens, plan.limits.max_logit_rows
    wanted = tokens or tuple(number for number in _TOKENS if number <= most)
    wrong = next((number for number in wanted if not 1 <= number <= most), None)
    if wrong is not None:
        raise ConfigError(f"--tokens is {wrong}; a step of this plan has 1 to {most} tokens")
    if context < 1:
        raise ConfigError(f"--context is {context}; it must be at least 1")
    return [decode(number, kv_len=context) if number <= most_rows else chunk(number) for number in wanted]


def _numbers(text: str | None) -> list[int]:
    """Read numbers that commas separate.

    Raises:
        ConfigError: One of them is no number.
    """
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise ConfigError(f"--tokens is {text!r}; it must be whole numbers separated by commas, such as 1,16")
    return [int(part) for part in parts]


def time_loads(parts: NativeParts, loads: Sequence[Workload]) -> dict[int, list[float]]:
    """Run steps of these sizes and return the seconds of every instruction, by their place in `loads`."""
    from trivium.runtime.rehearsal import pages_needed, time_instructions  # noqa: PLC0415  (start-up time)

    plan = parts.plan
    executor = parts.make(pages_needed(loads, plan.kv.spec), lambda stage, done, total: None)
    try:
        return {
            place: time_instructions(
                executor,
                load,
                plan.kv.spec,
                vocab_size=plan.sizes.vocab_size,
                max_num_tokens=plan.limits.max_num_batched_tokens,
                rounds=_ROUNDS,
            )
            for place, load in enumerate(loads)
        }
    finally:
        executor.close()


def _find(target: str | None, settings: Settings, *, is_measured: bool) -> tuple[StoredPlan, NativeParts | None]:
    """Return the plan, and what runs it where it is to be timed and can be."""
    found = open_target(target, settings)
    if not is_measured or found.stored is None:
        parts = found.parts()[1]
        return parts.held.stored, parts if is_measured else None
    try:
        parts = found.parts()[1]
    except (ModelError, PlanError, ConfigError) as error:
        note(f"nothing is timed: {error}")
        return found.stored, None
    return parts.held.stored, parts
