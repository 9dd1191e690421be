"""What there is to choose: a tactic for each distinct product of a plan, for a few numbers of rows.

::

    rows of a step     1     2..4    5..16    17..64    65..256    257..limit
    timed with         1     4       16       64        256        limit
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trivium.base.errors import InternalError
from trivium.plan.program import Buffer, Instruction, Plan, Program, Weight
from trivium.plan.tactic import make_tactic
from trivium.plan.vocabulary import PRODUCTS

ROWS = (1, 4, 16, 64, 256)
"""Numbers of rows that are timed, as far as a step may have so many; the greatest that it may have is added."""

_EPILOGUES = {"projection": "store", "projection_add": "add", "gated_projection": "gated"}


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A product as its kernel sees it: layers that agree in this are timed once."""

    epilogue: str
    """`store`, `add` or `gated`."""
    depth: int
    columns: tuple[int, ...]
    """Of each part."""
    formats: tuple[str, ...]
    operand: str
    """Kind of the left operand."""

    def __str__(self) -> str:
        parts = "+".join(f"{width}:{form}" for width, form in zip(self.columns, self.formats, strict=True))
        return f"{self.epilogue} {self.operand}[{self.depth}] x {parts}"


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """A site at one number of rows: what is timed."""

    site: Site
    num_rows: int

    def __str__(self) -> str:
        return f"{self.site}, {self.num_rows} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A case, and how much it matters to its plan."""

    case: Case
    num_instructions: int
    num_weights: int
    """Elements, over all instructions of its site."""


def find_work(plan: Plan) -> list[Work]:
    """List the cases of a plan's base program, those with most weights first, and of these few rows first."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    weights = {weight.name: weight for weight in plan.weights}
    counts: dict[Case, int] = {}
    for instruction in plan.programs["base"].instructions:
        if instruction.op in PRODUCTS:
            site = site_of(instruction, buffers, weights)
            for rows in rows_up_to(plan.limits.rows(buffers[instruction.reads["x"]].rows)):
                counts[Case(site, rows)] = counts.get(Case(site, rows), 0) + 1
    sites: dict[Site, int] = {}
    for case, count in counts.items():
        sites[case.site] = max(sites.get(case.site, 0), _elements(case.site) * count)
    ranked = sorted(counts, key=lambda case: (-sites[case.site], case))
    return [Work(case=case, num_instructions=counts[case], num_weights=sites[case.site]) for case in ranked]


def rows_up_to(limit: int) -> tuple[int, ...]:
    """Return the numbers of rows that stand for all from 1 to `limit`."""
    return (*(rows for rows in ROWS if rows < limit), limit)


def site_of(instruction: Instruction, buffers: Mapping[str, Buffer], weights: Mapping[str, Weight]) -> Site:
    """Return the site of a product.

    Raises:
        InternalError: The instruction is no product.
    """
    if instruction.op not in PRODUCTS:
        raise InternalError(f"{instruction.op} is no product, so it has no tactics")
    names = [name for operand, name in sorted(instruction.weights.items()) if operand != "bias"]
    parts = [weights[name] for name in names]
    return Site(
        epilogue=_EPILOGUES[instruction.op],
        depth=parts[0].shape[1],
        columns=tuple(part.shape[0] for part in parts),
        formats=tuple(part.format for part in parts),
        operand=buffers[instruction.reads["x"]].kind,
    )


def with_tactics(plan: Plan, best: Mapping[Case, str]) -> Plan:
    """Return the plan with the tactics that are known; cases without one run by rule.

    Args:
        plan: A checked plan; what tactics it has are dropped.
        best: Case to the kernel that is fastest there.
    """
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    weights = {weight.name: weight for weight in plan.weights}

    def choose(instruction: Instruction) -> Instruction:
        if instruction.op not in PRODUCTS:
            return instruction
        site = site_of(instruction, buffers, weights)
        limit = plan.limits.rows(buffers[instruction.reads["x"]].rows)
        kernels = {rows: best.get(Case(site, rows), "auto") for rows in rows_up_to(limit)}
        return replace(instruction, tactic=make_tactic(kernels))

    def all_of(program: Program) -> Program:
        return replace(program, instructions=tuple(map(choose, program.instructions)))

    return replace(plan, programs={name: all_of(program) for name, program in plan.programs.items()})


def cases_of(plan: Plan) -> Iterator[Case]:
    """Yield every case of a plan."""
    return (work.case for work in find_work(plan))


def _elements(site: Site) -> int:
    return site.depth * sum(site.columns)
