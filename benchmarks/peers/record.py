"""One line of the raw results: what one engine did at one point in one round, and what the machine was like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OURS = "trivium"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measurement, or one that failed."""

    model: str
    point: str
    suite: str
    engine: str
    variant: str
    """Weight format of a peer, or the label of a set of options of ours."""
    version: str
    run: int
    """Round, from 0."""
    tokens_per_s: float | None = None
    """Output tokens per second, prefill included; prompt tokens per second where only one token is generated."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Whatever else was measured: decode and prefill rates, latencies in milliseconds."""
    error: str | None = None
    command: str = ""
    seed: int | None = None
    """Of the prompts, where they are ours."""
    when: str = ""
    """Local time at which the turn began."""
    stream_gb_per_s: float | None = None
    """Read rate of memory right before."""
    others_cpu_share: float | None = None
    """Share of the machine's processors that others took meanwhile."""
    has_precedence: bool = False
    """Whether the timed processes' scheduling groups could be raised."""
    start_s: float | None = None
    """From starting a server to its first token; `None` when it was there already, and in process."""

    def is_usable(self, most_others: float) -> bool:
        """Whether it succeeded while others took at most that share of the machine."""
        return self.tokens_per_s is not None and (self.others_cpu_share or 0.0) <= most_others


def append(path: Path, record: Record) -> None:
    """Write one line; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def read(paths: Iterable[Path]) -> list[Record]:
    """Read files of lines.

    Raises:
        ValueError: A line is not a record; the message names file and line.
    """
    records = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                records.append(_parse(line, f"{path}:{number}"))
    return records


def _parse(line: str, place: str) -> Record:
    try:
        values: dict[str, Any] = json.loads(line)
        return Record(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: not a measurement: {error}") from error
