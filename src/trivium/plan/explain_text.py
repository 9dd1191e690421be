"""An explanation as Markdown, which a terminal shows as well as a report does."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.config.sizes import format_bytes
from trivium.plan.cost import MachineLimits, Workload
from trivium.plan.explain import Explanation, Figures


def explanation_text(explanation: Explanation) -> str:
    """Write the tables: what the instructions are, then what they cost under each workload."""
    parts = [facts_text(explanation), markdown_table(*instructions_table(explanation))]
    for idx, load in enumerate(explanation.loads):
        header, rows = figures_table(explanation, idx)
        parts += [f"### {load_text(load)}", markdown_table(header, rows)]
    return "\n\n".join(parts)


def figures_table(explanation: Explanation, idx: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of what one workload costs; without a measurement, there are no columns for it."""
    num_columns = len(_COLUMNS) if explanation.totals[idx].measured_s is not None else len(_COLUMNS) - 2
    rows = [(str(row.places[0]), row.op, *_cells(row.figures[idx])[:num_columns]) for row in explanation.rows]
    rows.append(("", "all", *_cells(explanation.totals[idx])[:num_columns]))
    return ("#", "op", *_COLUMNS[:num_columns]), rows


def instructions_table(explanation: Explanation) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of what the instructions are."""
    rows: list[tuple[str, ...]] = [
        (str(row.places[0]), str(len(row.places)), row.op, row.shape, row.formats, row.tactic)
        for row in explanation.rows
    ]
    return ("#", "count", "op", "shape", "formats", "tactic"), rows


def load_text(load: Workload) -> str:
    """Say what a step runs: `16 requests, one token each, 256 tokens of context`."""
    if load.num_tokens == load.num_requests:
        requests = "1 request" if load.num_requests == 1 else f"{load.num_requests} requests"
        return f"{requests}, one token each, {load.kv_len} tokens of context"
    return f"a prompt of {load.num_tokens} tokens"


def facts_text(explanation: Explanation) -> str:
    """Say what runs and what it is compared with."""
    return (
        f"{explanation.native_calls} native calls per step (forward, sample). Program {explanation.program}: "
        f"{explanation.num_instructions} instructions, {explanation.num_fused} of them fused; "
        f"arena {format_bytes(explanation.arena_bytes)}.\n"
        f"Predicted is the least time by what this machine can do: {limits_text(explanation.limits)}.\n"
        "More than 100 % of it: weights were in cache still, or the machine was slower while its limits were measured."
    )


def limits_text(limits: MachineLimits) -> str:
    """Say what the machine can do: `memory 35.0 GB/s, cache 180 GB/s, int8 940 GOPS, …`."""
    rates = [f"{kind} {rate * 1e-9:.0f} GOPS" for kind, rate in limits.operations.items()]
    memory = f"memory {limits.memory_bytes * 1e-9:.1f} GB/s, cache {limits.cache_bytes * 1e-9:.0f} GB/s"
    return ", ".join([memory, *rates])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write an aligned Markdown table; columns of numbers are set to the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(2, *(len(line[column]) for line in lines)) for column in range(len(header))]
    is_number = [_is_right([row[column] for row in rows]) for column in range(len(header))]

    def write(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ("-" * (width - 1) + ":" if right else "-" * width for width, right in zip(widths, is_number, strict=True))
    return "\n".join([write(header), f"| {' | '.join(rule)} |", *(write(row) for row in rows)])


_COLUMNS = ("weights", "KV", "arena", "Mop", "predicted us", "measured us", "of roofline")


def _cells(figures: Figures) -> tuple[str, ...]:
    cost = figures.cost
    sizes = (format_bytes(size) if size else "" for size in (cost.weight_bytes, cost.kv_bytes, cost.arena_bytes))
    return (
        *sizes,
        f"{cost.operations * 1e-6:,.1f}",
        f"{figures.predicted_s * 1e6:,.1f}",
        "" if figures.measured_s is None else f"{figures.measured_s * 1e6:,.1f}",
        "" if figures.share is None else f"{figures.share:.0%}",
    )


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit()


def _is_right(cells: Sequence[str]) -> bool:
    """Whether a column holds quantities; names and shapes are set to the left."""
    return all(_is_number(cell) and "→" not in cell and "/" not in cell for cell in cells)
