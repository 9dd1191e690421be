"""The tables of the points whose prompts share beginnings: wall time, prompt tokens avoided, latencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.peers.markdown import head, number, row
from benchmarks.peers.points import POINTS
from benchmarks.peers.promises import judge
from benchmarks.peers.record import OURS
from benchmarks.peers.summary import Cell, best

_LATENCIES = {
    "TTFT cold": "ttft_cold",
    "TTFT cached": "ttft_cached",
    "TPOT": "tpot",
    "gap": "itl",
}
_KINDS = {"TTFT of long prompts": "long_ttft", "TPOT of streams": "stream_tpot", "gap of streams": "stream_itl"}
_NAMES = {point.name: point for point in POINTS if point.shape is not None}


def shared_tables(cells: Sequence[Cell], engines: Sequence[str]) -> Iterable[str]:
    """Yield lines of tables, none where no such point was measured: every engine's best variant.

    Args:
        cells: Those of a model.
        engines: In the order of the rows.
    """
    own = [cell for cell in cells if cell.point in _NAMES]
    if own:
        yield from _wall_table(own, engines)
    if any(name + "_p50_ms" in cell.figures for cell in own for name in _KINDS.values()):
        yield ""
        yield from _kinds_table(own, engines)


def promise_lines(cells: Sequence[Cell]) -> Iterable[str]:
    """Yield a table of what is promised at the points that were measured; none where none was."""
    verdicts = list(judge(cells))
    if verdicts:
        yield head("point", "best peer", "its wall s", f"{OURS} wall s", "ratio", "promised", "kept")
    for verdict in verdicts:
        yield row(
            verdict.point,
            "-" if verdict.peer is None else f"{verdict.peer.engine} {verdict.peer.variant}",
            *(_seconds(cell) for cell in (verdict.peer, verdict.ours)),
            "-" if verdict.ratio is None else f"**{verdict.ratio:.2f}**",
            f"{verdict.least:g}",
            "yes" if verdict.is_kept else "no" if verdict.ratio is not None else "not measured",
        )


def _wall_table(cells: Sequence[Cell], engines: Sequence[str]) -> Iterable[str]:
    latencies = [f"{label} p50 / p99 ms" for label in _LATENCIES]
    yield head("point", "engine", "wall s", f"over {OURS}", "tok/s", "prompt tokens", "computed", "avoided", *latencies)
    for point, engine, cell, ours in _rows(cells, engines):
        ratio = "-" if ours is None or engine == OURS else f"**{ours.median / cell.median:.2f}**"
        asked, computed = cell.figures.get("prompt_tokens"), cell.figures.get("computed_tokens")
        avoided = "-" if not asked or computed is None else f"{1 - computed / asked:.0%}"
        yield row(
            point, f"{engine} {cell.variant}", _seconds(cell), ratio, number(cell.median), number(asked),
            number(computed), avoided, *(_pair(cell, name) for name in _LATENCIES.values()),
        )  # fmt: skip


def _kinds_table(cells: Sequence[Cell], engines: Sequence[str]) -> Iterable[str]:
    yield head("point", "engine", *(f"{label} p50 / p99 ms" for label in _KINDS))
    for point, engine, cell, _ in _rows(cells, engines):
        if any(name + "_p50_ms" in cell.figures for name in _KINDS.values()):
            yield row(point, f"{engine} {cell.variant}", *(_pair(cell, name) for name in _KINDS.values()))


def _rows(cells: Sequence[Cell], engines: Sequence[str]) -> Iterable[tuple[str, str, Cell, Cell | None]]:
    """Yield point, engine, its best cell there and our best one."""
    for point in _NAMES:
        ours = best(cells, point, OURS)
        for engine in engines:
            cell = best(cells, point, engine)
            if cell is not None:
                yield point, engine, cell, ours


def _seconds(cell: Cell | None) -> str:
    return "-" if cell is None else number(cell.figures.get("seconds"))


def _pair(cell: Cell, name: str) -> str:
    return f"{number(cell.figures.get(f'{name}_p50_ms'))} / {number(cell.figures.get(f'{name}_p99_ms'))}"
