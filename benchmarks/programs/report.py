"""Tables of what was run, as Markdown: medians over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.programs.ways import IN_PROCESS, NO_SHARING, Result


def tables(results: Sequence[Result]) -> str:
    """Return what sharing saves, and how servers compare."""
    loads = list(dict.fromkeys(result.load for result in results))
    ways = list(dict.fromkeys(result.way for result in results))
    taken = {(load, way): _of(results, load, way) for load in loads for way in ways}
    return "\n".join([*_sharing(loads, taken), "", *_seconds(loads, ways, taken)])


def _of(results: Sequence[Result], load: str, way: str) -> list[Result]:
    return [result for result in results if (result.load, result.way) == (load, way)]


def _sharing(loads: Sequence[str], taken: Mapping[tuple[str, str], Sequence[Result]]) -> Iterator[str]:
    """Tell what the cache found in this process, beside the optimum and beside no cache."""
    heads = (
        "load",
        "calls",
        "prompt tokens",
        "found",
        "of the optimum",
        "forward passes",
        "without",
        "time, s",
        "without",
    )
    yield "| " + " | ".join(heads) + " |"
    yield "|---" * len(heads) + "|"
    for load in loads:
        own = [result for result in taken.get((load, IN_PROCESS), ()) if result.error is None]
        if not own:
            continue
        without = [result for result in taken.get((load, NO_SHARING), ()) if result.error is None]
        counts = own[0].counts
        found, best = counts["cached_tokens"], counts["reusable_tokens"]
        yield (
            f"| {load} | {counts['num_calls']:,} | {counts['prompt_tokens']:,} "
            f"| {found:,} ({100 * found / counts['prompt_tokens']:.1f} %) | {100 * found / max(best, 1):.2f} % "
            f"| {own[0].num_steps:,} | {without[0].num_steps if without else 0:,} "
            f"| {_median(own):.2f} | {_median(without):.2f} |"
        )


def _seconds(
    loads: Sequence[str], ways: Sequence[str], taken: Mapping[tuple[str, str], Sequence[Result]]
) -> Iterator[str]:
    """Tell wall times, and over that in this process in brackets."""
    yield "| load | " + " | ".join(ways) + " |"
    yield "|---" * (len(ways) + 1) + "|"
    for load in loads:
        base = _median([result for result in taken.get((load, IN_PROCESS), ()) if result.error is None])
        yield f"| {load} | " + " | ".join(_cell(taken[load, way], base) for way in ways) + " |"


def _cell(results: Sequence[Result], base: float) -> str:
    good = [result for result in results if result.error is None]
    if not good:
        return "-"
    seconds = _median(good)
    ratio = f" ({seconds / base:.2f})" if base and good[0].way != IN_PROCESS else ""
    rate = ""
    if good[0].way not in {IN_PROCESS, NO_SHARING} and good[0].tells_cached:
        rate = f", {100 * good[0].counts['cached_tokens'] / good[0].counts['prompt_tokens']:.0f} %"
    return f"{seconds:.1f}{ratio}{rate}"


def _median(results: Sequence[Result]) -> float:
    return statistics.median(result.seconds for result in results) if results else 0.0
