"""What every option may be: ranges, and combinations that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trivium.base.errors import ConfigError
from trivium.config.sizes import parse_bytes
from trivium.config.tiers import parse_disk_cache

_MAX_INT32 = (1 << 31) - 1
_LEAST_WEIGHT, _MOST_WEIGHT = 0.001, 1000.0

RANGES: Mapping[str, tuple[float, float]] = {
    "max_model_len": (1, _MAX_INT32),
    "threads": (1, 1024),
    "kv_cache_fraction": (0.0, 0.95),
    "page_len": (1, 256),
    "max_num_seqs": (1, 65536),
    "max_loras": (1, 4096),
    "max_lora_rank": (1, 4096),
    "max_num_batched_tokens": (1, 1 << 24),
    "max_queue": (1, _MAX_INT32),
    "max_queue_wait": (0.001, 86400.0),
    "aging_s": (0.0, 86400.0),
    "program_idle_s": (0.0, 86400.0),
    "grammar_timeout_s": (0.01, 86400.0),
    "tpot_target": (1e-4, 3600.0),
    "ttft_target": (1e-4, 86400.0),
    "seed": (0, (1 << 64) - 1),
    "port": (0, 65535),
    "max_body_bytes": (1024, _MAX_INT32),
    "request_history": (0, 1 << 20),
    "max_programs": (1, 65536),
    "max_program_steps": (1, _MAX_INT32),
    "max_program_branches": (0, _MAX_INT32),
    "max_program_tokens": (0, _MAX_INT32),
    "max_program_s": (0.1, 86400.0),
    "max_program_tool_s": (0.1, 86400.0),
    "kv_events_buffer": (1, 1 << 24),
    "trace_steps_bytes": (1 << 16, 1 << 40),
    "keep_alive_s": (0.1, 86400.0),
    "heartbeat_timeout_s": (0.1, 86400.0),
    "drain_timeout_s": (0.0, 86400.0),
    # of `trivium bench`
    "num_requests": (1, 1 << 24),
    "prompt_len": (1, 1 << 24),
    "output_len": (1, 1 << 24),
    "prefix_len": (0, 1 << 24),
    "turns": (1, 1000),
    "workload_seed": (0, (1 << 63) - 1),
    "concurrency": (1, 65536),
    "sweep": (1, 65536),
    "rate": (1e-6, 1e6),
    "warm_up": (0, 1 << 24),
    "timeout_s": (0.1, 86400.0),
    "price": (0.0, 1e9),
}
"""Smallest and greatest value of every option that is a number, or of each number of a list."""

SIZES = frozenset({"kv_cache_memory", "host_cache", "grammar_cache_memory"})
"""Of bytes, written with a unit."""

NOT_EMPTY = ("model", "device", "host")
FILES = ("api_key_file", "ssl_certfile", "ssl_keyfile", "prompts_file")
"""Options that name a file which must be there."""


class Contradiction(NamedTuple):
    """A rule over several options."""

    options: tuple[str, ...]
    is_broken: Callable[..., bool]
    message: str


CONTRADICTIONS: tuple[Contradiction, ...] = (
    Contradiction(
        ("ssl_certfile", "ssl_keyfile"),
        lambda certificate, key: (certificate is None) != (key is None),
        "ssl_certfile and ssl_keyfile belong together; give both or neither",
    ),
    Contradiction(
        ("array_library", "device"),
        lambda library, device: library == "numpy" and device != "cpu",
        "NumPy computes on the cpu only; set array_library to torch for another device",
    ),
    Contradiction(
        ("executor", "array_library"),
        lambda executor, library: executor == "native" and library != "numpy",
        "array_library is of the reference executor; leave it out, or set executor to reference",
    ),
    Contradiction(
        ("executor", "weights"),
        lambda executor, weights: executor == "reference" and weights not in {"auto", "f32"},
        "the reference executor multiplies in float32; leave weights out, or set executor to native",
    ),
    Contradiction(
        ("executor", "activation_group"),
        lambda executor, group: executor == "reference" and group != "32",
        "the reference executor rounds no activations; leave activation_group out, or set executor to native",
    ),
    Contradiction(
        ("executor", "kv_cache_dtype"),
        lambda executor, dtype: executor == "reference" and dtype not in {"auto", "f32"},
        "the reference executor keeps keys and values in float32; leave kv_cache_dtype out, or set executor to native",
    ),
    Contradiction(
        ("executor", "plan"),
        lambda executor, plan: executor == "reference" and plan is not None,
        "the reference executor runs no plan; leave plan out, or set executor to native",
    ),
    Contradiction(
        ("preempt_for_priority", "order"),
        lambda preempts, order: preempts and order != "priority",
        "only order priority says who is worth more than whom; set it, or leave preempt_for_priority out",
    ),
    Contradiction(
        ("preempt_for_priority", "admission"),
        lambda preempts, admission: preempts and admission != "max-utilization",
        "requests that have started are never preempted then; leave preempt_for_priority out, or set admission to "
        "max-utilization",
    ),
    Contradiction(
        ("tenant_weight", "fair_share"),
        lambda weights, is_fair: bool(weights) and not is_fair,
        "weights are of fair shares; set fair_share, or leave tenant_weight out",
    ),
    Contradiction(
        ("ttft_target", "tpot_target"),
        lambda ttft, tpot: ttft is not None and tpot is None,
        "prefills get whole steps unless there is a tpot_target; give both, or neither",
    ),
    Contradiction(
        ("prefix_cache", "disk_cache", "host_cache"),
        lambda prefix_cache, disk, host: not prefix_cache and (disk is not None or host is not None),
        "disk_cache and host_cache keep what the prefix cache finds; leave them out, or leave the prefix cache on",
    ),
    Contradiction(
        ("prefix_cache", "kv_events"),
        lambda prefix_cache, tells: not prefix_cache and tells,
        "kv_events tell what the prefix cache holds; leave them out, or leave the prefix cache on",
    ),
    Contradiction(
        ("preemption", "disk_cache", "host_cache"),
        lambda preemption, disk, host: preemption != "recompute" and disk is None and host is None,
        "there is no tier to swap to; give disk_cache (or, for a device, host_cache), or leave preemption out",
    ),
    Contradiction(
        ("workload", "prompts_file"),
        lambda workload, file: (workload == "file") != (file is not None),
        "workload 'file' and prompts_file belong together; give both or neither",
    ),
    Contradiction(
        ("concurrency", "sweep", "rate"),
        lambda concurrency, sweep, rate: (concurrency is not None) + bool(sweep) + (rate is not None) > 1,
        "concurrency, sweep and rate are three ways to load a server; give one",
    ),
)


def parse_weights(texts: Sequence[str], *, option: str = "tenant_weight") -> dict[str, float]:
    """Read weights written as NAME=WEIGHT.

    Raises:
        ConfigError: One is written otherwise, is no number from 0.001 to 1000, or names a tenant twice.
    """
    weights: dict[str, float] = {}
    for text in texts:
        name, separator, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not separator or not name or not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
            raise ConfigError(f"{option} has {text!r}; it must be NAME=WEIGHT with a weight from 0.001 to 1000")
        if name in weights:
            raise ConfigError(f"{option} names {name!r} twice; give each tenant one weight")
        weights[name] = weight
    return weights


def parse_adapters(texts: Sequence[str], *, option: str = "lora") -> dict[str, Path]:
    """Read adapters written as NAME=PATH.

    Raises:
        ConfigError: One is written otherwise, or a name is there twice.
    """
    found: dict[str, Path] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not name.strip() or not path.strip():
            raise ConfigError(f"{option} has {text!r}; it must be NAME=PATH")
        if name in found:
            raise ConfigError(f"{option} names {name!r} twice; give each adapter a name of its own")
        found[name] = Path(path).expanduser()
    return found


def check_folders(folders: Sequence[Path], *, option: str) -> None:
    """Check that folders are there.

    Raises:
        ConfigError: One is not.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{option} has '{folder}', which is no folder")


def check_value(name: str, value: Any, origin: str) -> None:
    """Check a value of the right type against the option's limits.

    Raises:
        ConfigError: It is outside; names the option, the value, its origin and the limit.
    """
    if value is None:
        return
    if name in RANGES:
        low, high = RANGES[name]
        for number in value if isinstance(value, tuple) else (value,):
            if not low <= number <= high:
                raise refused(name, number, origin, f"from {low:g} to {high:.10g}")
    if name in NOT_EMPTY and not str(value).strip():
        raise refused(name, value, origin, "a text that is not empty")
    if name in FILES and not Path(value).is_file():
        raise refused(name, str(value), origin, "a file that exists")
    if name in _FORMS:
        _FORMS[name](value, option=f"{name} (from {origin})")


class _Form(Protocol):
    """Reads a text, or several, that have a form; raises `ConfigError` where they have not."""

    def __call__(self, value: Any, /, *, option: str) -> object: ...


_FORMS: Mapping[str, _Form] = {
    "tenant_weight": parse_weights,
    "disk_cache": parse_disk_cache,
    **dict.fromkeys(SIZES, parse_bytes),
    "lora": parse_adapters,
    "lora_root": check_folders,
}


def check_together(values: Mapping[str, Any]) -> None:
    """Check options against each other.

    Raises:
        ConfigError: Two options contradict each other.
    """
    for rule in CONTRADICTIONS:
        if all(name in values for name in rule.options) and rule.is_broken(*(values[name] for name in rule.options)):
            given = ", ".join(f"{name} is {str(values[name])!r}" for name in rule.options)
            raise ConfigError(f"{given}: {rule.message}")


def refused(name: str, value: object, origin: str, limit: str) -> ConfigError:
    """Say that an option cannot have a value, whence the value came, and what it may be."""
    return ConfigError(f"{name} is {value!r} (from {origin}); it must be {limit}")
