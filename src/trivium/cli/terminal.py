"""What the commands write, and where: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from trivium.weights.fetch import FetchProgress, ProgressCallback


def write(text: str, *, end: str = "\n") -> None:
    """Write a result to standard output, at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def write_dim(text: str) -> None:
    """Write what is beside the result, such as reasoning: dimmed to a terminal, to others not at all."""
    if sys.stdout.isatty():
        write(f"\x1b[2m{text}\x1b[22m", end="")


def write_json(value: Any, *, is_line: bool = False) -> None:
    """Write a result as JSON: on one line, or indented for people."""
    write(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=None if is_line else 2, default=str))


def note(text: str) -> None:
    """Tell the user something that is not a result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def fail(message: str) -> None:
    """Say in one line why the command failed."""
    note("trivium: " + " ".join(message.split()))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns by their widest cell."""
    lines = [header, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


@contextmanager
def fetching() -> Iterator[ProgressCallback]:
    """Show how a download goes: a bar on a terminal, else one line per stage; yields what it is told with."""
    if not sys.stderr.isatty():
        yield _StageLines()
        return
    from rich.console import Console  # noqa: PLC0415  (start-up time)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def advance(progress: FetchProgress) -> None:
            label = f"{progress.model}: {progress.stage}"
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=progress.total_bytes)
            bar.update(tasks[label], completed=progress.done_bytes, total=progress.total_bytes)

        yield advance


class _StageLines:
    """Writes one line when a stage of a download begins."""

    def __init__(self) -> None:
        self._stage = ""

    def __call__(self, progress: FetchProgress) -> None:
        if progress.stage != self._stage:
            self._stage = progress.stage
            note(f"{progress.model}: {progress.stage} ({format_bytes(progress.total_bytes)})")
