"""Prompts to measure with: synthetic ones from a seed, or a file's. Same seed, same prompts, on every machine."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.base.errors import ConfigError
from trivium.bench.options import WorkloadOptions

WORDS = (  # noqa: SIM905  (a list of 90 quoted words reads worse)
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education"
).split()
"""What texts are drawn from."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request, or one conversation whose turns follow each other."""

    prompts: tuple[str, ...]
    """One user text per turn."""
    messages: tuple[dict[str, Any], ...] = ()
    """A conversation to send as it is, instead of `prompts`."""
    is_chat: bool = False


def make_workload(options: WorkloadOptions) -> list[BenchRequest]:
    """Build the requests of a run.

    Raises:
        ConfigError: The prompts file is missing, unreadable or empty.
    """
    rng = random.Random(options.workload_seed)  # noqa: S311  (prompts, not secrets)
    if options.workload == "file":
        return _from_file(options)
    prefix = _text(rng, options.prefix_len) + "\n" if options.workload == "shared-prefix" else ""
    turns = options.turns if options.workload == "multi-turn" else 1
    return [
        BenchRequest(
            tuple(prefix + _text(rng, options.prompt_len) for _ in range(turns)),
            is_chat=options.workload == "multi-turn",
        )
        for _ in range(options.num_requests)
    ]


def _text(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


def _from_file(options: WorkloadOptions) -> list[BenchRequest]:
    if options.prompts_file is None:
        raise ConfigError("workload is 'file', but no prompts_file was given")
    try:
        lines = [line for line in Path(options.prompts_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"prompts_file {options.prompts_file} cannot be read: {error.strerror}") from error
    if not lines:
        raise ConfigError(f"prompts_file {options.prompts_file} has no prompts")
    is_json = Path(options.prompts_file).suffix in {".jsonl", ".json"}
    known = [_from_json(line, number) if is_json else BenchRequest((line,)) for number, line in enumerate(lines, 1)]
    return [known[idx % len(known)] for idx in range(options.num_requests)]


def _from_json(line: str, number: int) -> BenchRequest:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"line {number} of the prompts file is not JSON: {error}") from error
    if isinstance(record, dict) and isinstance(record.get("messages"), list):
        return BenchRequest((), tuple(record["messages"]), is_chat=True)
    if isinstance(record, dict) and isinstance(record.get("prompt"), str):
        return BenchRequest((record["prompt"],))
    raise ConfigError(f"line {number} of the prompts file has neither 'prompt' nor 'messages'")
