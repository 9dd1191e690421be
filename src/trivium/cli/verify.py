"""`trivium verify`: run a text through plan and reference, and name the first instruction that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError
from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.targets import PlanTarget, open_target
from trivium.cli.terminal import write, write_json
from trivium.config.options import EngineOptions, ScheduleOptions

if TYPE_CHECKING:
    from trivium.assembly.verification import Verification

_TEXT = "Where three roads meet there is a market, and everybody who passes it has heard 1,024 stories."
_ALONE = 2
_FEWEST = 4
_MOST = 64


@flags_of(EngineOptions, without=("plan",), aside=(ScheduleOptions,))
def verify(
    target: PlanTarget = None,
    /,
    *,
    text: Annotated[str, Parameter(help="The text; its last two tokens are decoded one by one.")] = _TEXT,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Compare a plan with the reference. The exit code is 1 where they differ by more than rounding.

    Raises:
        ConfigError: The text is too short, or the native executor cannot run here.
        PlanError: The directory holds no plan that can be used.
        ModelError: The model cannot be found or understood.
    """
    from trivium.assembly.model import load_tokenizer  # noqa: PLC0415  (start-up time)
    from trivium.assembly.verification import Reference, verify_plan  # noqa: PLC0415
    from trivium.base.intmath import ceil_div  # noqa: PLC0415
    from trivium.plan.explain_text import markdown_table  # noqa: PLC0415

    found = open_target(target, settle((EngineOptions,), flags, config=config))
    model, parts = found.parts()
    plan = parts.plan
    tokens = load_tokenizer(found.options, model).encode(text, add_special_tokens=True)
    limits = {"max_num_batched_tokens": plan.limits.max_num_batched_tokens, "max_num_seqs": plan.limits.max_logit_rows}
    for name, limit in limits.items():
        if limit < _FEWEST:
            raise ConfigError(f"{name} of this plan is {limit}; to verify takes at least {_FEWEST}: compile with more")
    if len(tokens) < _FEWEST:
        raise ConfigError(f"--text has {len(tokens)} tokens; give at least {_FEWEST}")
    tokens = tokens[: min(_MOST, *limits.values())]
    num_pages = (ceil_div(len(tokens), plan.kv.spec.page_len),) * len(plan.kv.spec.groups)
    executor = parts.make(num_pages, lambda stage, done, total: None)
    try:
        reference = Reference(parts.graph, parts.stored_parameters, model.config, plan)
        outcome = verify_plan(plan, executor, reference, tokens, num_alone=_ALONE)
    finally:
        executor.close()
    if json:
        write_json(_facts(outcome))
    else:
        write(markdown_table(*_table(outcome)))
        write(_verdict(outcome, model.name))
    return 0 if outcome.is_right else 1


def _table(outcome: Verification) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows: per op and result, how many were judged and the worst of them."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for finding in outcome.findings:
        groups.setdefault((finding.op, finding.result), []).append(finding)
    rows: list[tuple[str, ...]] = [
        (
            op,
            result,
            str(len(found)),
            f"{max(each.error for each in found):.1e}",
            f"{max(each.excess for each in found):.3f}",
            "wrong" if any(each.is_wrong for each in found) else "ok",
        )
        for (op, result), found in groups.items()
    ]
    return ("op", "result", "judged", "worst error", "of what rounding explains", ""), rows


def _verdict(outcome: Verification, name: str) -> str:
    steps = f"{outcome.num_tokens} tokens in {outcome.num_steps} steps"
    logits = (
        f"logits: relative error {outcome.logit_error:.4f} against float32 (up to {outcome.most_logit_error:g} is "
        f"rounding), same best token at {outcome.agreement:.0%} of positions"
    )
    if outcome.wrong is not None:
        wrong = outcome.wrong
        return (
            f"\n{name}: {steps}.\n{logits}.\nWRONG: first at {wrong}: relative error {wrong.error:.2e}, "
            f"{wrong.excess:.0f} times what rounding explains."
        )
    if outcome.is_right:
        return f"\n{name}: {steps}.\n{logits}.\nThe plan does what the model says."
    blame = "no pass changed the graph, so the plan was not emitted as its graph says"
    if outcome.guilty is not None:
        blame = f"the pass '{outcome.guilty.name}' changed the graph by {outcome.guilty.error:.2e}"
    return f"\n{name}: {steps}.\n{logits}.\nWRONG: every instruction does what the plan says, but {blame}."


def _facts(outcome: Verification) -> dict[str, Any]:
    wrong, guilty = outcome.wrong, outcome.guilty
    return {
        "is_right": outcome.is_right,
        "num_tokens": outcome.num_tokens,
        "num_steps": outcome.num_steps,
        "num_judged": len(outcome.findings),
        "first_wrong": None
        if wrong is None
        else {
            "place": wrong.place,
            "op": wrong.op,
            "layer": wrong.layer,
            "result": wrong.result,
            "buffer": wrong.buffer,
            "error": wrong.error,
            "excess": wrong.excess,
        },
        "guilty_pass": None if guilty is None else guilty.name,
        "logit_error": outcome.logit_error,
        "most_logit_error": outcome.most_logit_error,
        "agreement": outcome.agreement,
    }
