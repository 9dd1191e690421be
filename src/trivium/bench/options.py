"""What a benchmark run can be told; the records become flags of `trivium bench`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trivium.config.record import ADVANCED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Which prompts, how long, how related."""

    workload: Literal["random", "shared-prefix", "multi-turn", "file"] = "random"
    """Kind of prompts: unrelated, sharing a prefix, conversations of several turns, or from a file."""
    num_requests: int = 32
    """Requests to send (conversations, for multi-turn)."""
    prompt_len: int = 128
    """Words of each synthetic prompt (about one token each), after any shared prefix."""
    output_len: int = 64
    """Tokens to generate per request."""
    prefix_len: int = 512
    """Words of the shared prefix, for shared-prefix."""
    turns: int = 4
    """Turns per conversation, for multi-turn."""
    prompts_file: Path | None = None
    """Text file (a prompt a line) or JSON lines with `prompt` or `messages`, for file; repeated when it is short."""
    workload_seed: int = field(default=0, metadata=ADVANCED)
    """Seed of the synthetic prompts and of arrival times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Which server is loaded, and how hard."""

    url: str = "http://127.0.0.1:8000"
    """Base URL of any OpenAI-compatible server."""
    served_model: str | None = None
    """Model name to ask for; by default the first of /v1/models."""
    bench_api_key: str | None = None
    """Key to send as a bearer token."""
    concurrency: int | None = None
    """Requests that are open at the same time; 16 unless sweep or rate is given."""
    sweep: tuple[int, ...] = ()
    """Concurrencies to measure one after the other, instead of one."""
    rate: float | None = None
    """Mean arrivals per second (Poisson), however many are open already, instead of a fixed concurrency."""
    ignore_eos: bool = field(default=True, metadata=ADVANCED)
    """Ask the server to generate to the full output length (an extension; turn off for servers that refuse it)."""
    warm_up: int = field(default=1, metadata=ADVANCED)
    """Requests sent first and not counted."""
    timeout_s: float = field(default=600.0, metadata=ADVANCED)
    """Longest time of one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Where results go."""

    json_file: Path | None = None
    """Write every figure, and what was asked for, as JSON here."""
    plot_file: Path | None = None
    """Draw throughput and latency over concurrency here (.svg, .png or .pdf); needs the bench extra."""
    price: float | None = None
    """Price of the machine per hour; adds the cost per million tokens."""
