"""Tables in Markdown and a plot, from cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.markdown import head, number, row
from benchmarks.peers.points import POINTS, Point
from benchmarks.peers.record import OURS, Record
from benchmarks.peers.shared_table import promise_lines, shared_tables
from benchmarks.peers.summary import Cell, best, lags, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FIGURES = {
    "decode_tokens_per_s": "decode tok/s",
    "prefill_tokens_per_s": "prefill tok/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "tpot_p50_ms": "TPOT p50 ms",
    "tpot_p99_ms": "TPOT p99 ms",
}


def to_markdown(records: Sequence[Record], most_others: float) -> str:
    """Write the whole report, one part per model."""
    parts = []
    for model in dict.fromkeys(record.model for record in records):
        own = [record for record in records if record.model == model]
        parts += [f"## {model}", *_model_parts(own, summarize(own, most_others))]
    return "\n\n".join(parts) + "\n"


def _model_parts(records: Sequence[Record], cells: Sequence[Cell]) -> Iterable[str]:
    yield _about(records)
    yield "### Best variant of each engine"
    yield "\n".join(_best_table(cells))
    decode = list(_best_table(cells, "decode_tokens_per_s"))
    if decode:
        yield "### Decode alone, prefill left out"
        yield "\n".join(decode)
    equal = list(_equal_table(cells))
    if equal:
        yield "### At equal precision of the weights"
        yield "\n".join(equal)
    shared = list(shared_tables(cells, _engines(cells)))
    if shared:
        yield "### Prompts that share beginnings: wall time, and prompt tokens computed"
        yield "\n".join(shared)
    promised = list(promise_lines(cells))
    if promised:
        yield "### What is promised"
        yield "\n".join(promised)
    yield "### Where a peer is faster"
    yield "\n".join(_lag_lines(cells))
    yield "### Every variant"
    yield "\n".join(_every_table(cells))
    failures = list(_failure_lines(records))
    if failures:
        yield "### Failed runs"
        yield "\n".join(failures)


def _about(records: Sequence[Record]) -> str:
    versions = dict.fromkeys(f"{record.engine}: {record.version}" for record in records)
    rates = [record.stream_gb_per_s for record in records if record.stream_gb_per_s is not None]
    stream = f"memory read at {min(rates):.1f} to {max(rates):.1f} GB/s beside the runs; " if rates else ""
    whens = sorted(record.when for record in records if record.when)
    taken = f"taken {whens[0]} to {whens[-1]}; " if whens else ""
    return f"{taken}{stream}{'; '.join(versions)}. Tokens per second: median (min..max) of the runs that count."


def _best_table(cells: Sequence[Cell], figure: str | None = None) -> Iterable[str]:
    """One row a point, one column an engine, and how many times a peer's rate ours is.

    Args:
        cells: Those of a model.
        figure: What to compare instead of tokens per second; points without it are left out.
    """
    known = [cell for cell in cells if cell.rate(figure)]
    engines = _engines(known)
    if known:
        yield head("point", "unit", *engines, *_ratio_names(engines))
    for point in _points(known):
        found = {engine: best(known, point.name, engine, figure=figure) for engine in engines}
        yield row(point.name, point.unit, *_compared(found, figure))


def _equal_table(cells: Sequence[Cell]) -> Iterable[str]:
    """The same among variants whose names tell the same number of bits; rows where we and a peer have one."""
    engines = _engines(cells)
    rows = []
    for point in _points(cells):
        for bits in sorted({cell.bits for cell in cells if cell.bits is not None}):
            found = {engine: best(cells, point.name, engine, bits=bits) for engine in engines}
            if found.get(OURS) is not None and sum(cell is not None for cell in found.values()) > 1:
                rows.append(row(point.name, f"{bits} bits", *_compared(found)))
    if rows:
        yield head("point", "weights", *engines, *_ratio_names(engines))
        yield from rows


def _ratio_names(engines: Sequence[str]) -> list[str]:
    return [f"{OURS} / {peer}" for peer in engines if OURS in engines and peer != OURS]


def _compared(found: Mapping[str, Cell | None], figure: str | None = None) -> Iterable[str]:
    """Yield each engine's rate, then our ratio to each peer."""
    for cell in found.values():
        yield "-" if cell is None else _with_variant(cell, figure)
    ours = found.get(OURS)
    for peer, cell in found.items():
        if OURS in found and peer != OURS:
            yield "-" if ours is None or cell is None else f"**{ours.rate(figure) / cell.rate(figure):.2f}**"


def _lag_lines(cells: Sequence[Cell]) -> Iterable[str]:
    if OURS not in _engines(cells):
        yield f"{OURS} was not measured."
        return
    found = lags(cells)
    if not found:
        yield "Nowhere, at the best variant of each."
        return
    yield head("point", "peer", "its rate", OURS, "ratio")
    for lag in found:
        yield row(lag.point, lag.peer.engine, _with_variant(lag.peer), _with_variant(lag.ours), f"{lag.ratio:.2f}")


def _every_table(cells: Sequence[Cell]) -> Iterable[str]:
    shown = {name: label for name, label in _FIGURES.items() if any(name in cell.figures for cell in cells)}
    yield head("point", "engine", "variant", "tok/s", "runs (discarded)", *shown.values(), "stream GB/s")
    for point in _points(cells):
        for cell in (cell for cell in cells if cell.point == point.name):
            runs = f"{len(cell.values)} ({cell.num_discarded})"
            figures = (number(cell.figures.get(name)) for name in shown)
            stream = number(cell.stream_gb_per_s)
            yield row(cell.point, cell.engine, cell.variant, _spread(cell), runs, *figures, stream)


def _failure_lines(records: Sequence[Record]) -> Iterable[str]:
    for record in records:
        if record.error is not None:
            first = record.error.splitlines()[0] if record.error else ""
            yield f"- {record.point}, {record.engine} {record.variant}, round {record.run}: {first}"


def _points(cells: Sequence[Cell]) -> list[Point]:
    names = {cell.point for cell in cells}
    return [point for point in POINTS if point.name in names]


def _engines(cells: Sequence[Cell]) -> list[str]:
    """Ours first, then peers as they come."""
    names = dict.fromkeys(cell.engine for cell in cells)
    return [name for name in (OURS, *(name for name in names if name != OURS)) if name in names]


def _with_variant(cell: Cell, figure: str | None = None) -> str:
    return f"{_spread(cell) if figure is None else f'**{number(cell.rate(figure))}**'} {cell.variant}"


def _spread(cell: Cell) -> str:
    return f"**{number(cell.median)}** ({number(min(cell.values))}..{number(max(cell.values))})"


def plot(records: Sequence[Record], most_others: float, path: Path) -> None:
    """Draw throughput over concurrency, in process and over HTTP, one row of panels per model; needs matplotlib.

    Raises:
        ImportError: matplotlib is not installed (the bench extra).
        ValueError: No run counts.
    """
    import matplotlib as mpl  # noqa: PLC0415  (optional dependency)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  (optional dependency)

    models = list(dict.fromkeys(record.model for record in records))
    if not any(record.is_usable(most_others) for record in records):
        raise ValueError("there is nothing to draw: no run counts")
    figure, axes = plt.subplots(len(models), 2, figsize=(11, 4 * len(models)), layout="constrained", squeeze=False)
    for panels, model in zip(axes, models, strict=True):
        cells = summarize([record for record in records if record.model == model], most_others)
        for panel, suite, title in zip(panels, ("batch", "online"), ("in process", "over HTTP"), strict=True):
            points = [point for point in _points(cells) if point.suite == suite and not point.is_prefill]
            for engine in _engines(cells):
                _draw_line(panel, engine, [(point.concurrency, best(cells, point.name, engine)) for point in points])
            panel.set_visible(bool(points))
            levels = [point.concurrency for point in points]
            panel.set_xscale("log", base=2)
            panel.set(
                title=f"{model}, {title}", xlabel="concurrency", ylabel="output tokens per second", ylim=(0, None)
            )
            panel.set_xticks(levels, labels=list(map(str, levels)))
            if panel.get_legend_handles_labels()[0]:
                panel.legend()
    figure.savefig(path)
    plt.close(figure)


def _draw_line(panel: Axes, engine: str, points: Sequence[tuple[int, Cell | None]]) -> None:
    """Draw medians with bars from min to max."""
    known = [(level, cell) for level, cell in points if cell is not None]
    if not known:
        return
    below = [cell.median - min(cell.values) for _, cell in known]
    above = [max(cell.values) - cell.median for _, cell in known]
    levels, medians = [level for level, _ in known], [cell.median for _, cell in known]
    panel.errorbar(levels, medians, yerr=[below, above], marker="o", capsize=3, label=engine)
