"""Every option of a server or an `LLM`, declared once: one frozen record per concern, composed, never inherited.

A field's default, type and docstring are also its command-line flag, its `TRIVIUM_*` variable, its key in a
configuration file, and its row in the documentation, which says of those marked `RELOADABLE` that SIGHUP reloads them.
Those marked `ADVANCED` are shown by `--help-all` only: what a first start needs comes first.
`None` means "no limit" or "not set", as the docstring says; `"auto"` means "choose", and what was chosen is in
`LLM.info`, in the start-up log and in `/v1/models`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trivium.config.record import ADVANCED

Auto = Literal["auto"]
RELOADABLE = {"is_reloadable": True}
"""Marks an option whose new value a running server takes at SIGHUP; never one that changes arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how it is read."""

    model: str = "smollm2"
    """Catalog name, directory in Hugging Face layout, .gguf file, or org/name on the hub."""
    tokenizer: str | None = field(default=None, metadata=ADVANCED)
    """Directory or tokenizer.json to use instead of the model's own tokenizer."""
    chat_template: str | None = None
    """Jinja file, or template text, to use instead of the model's own chat template."""
    tool_call_parser: str = field(default="auto", metadata={**ADVANCED, "other_flags": ("--tool-parser",)})
    """Dialect in which the model writes tool calls; auto finds it by the chat template, none reads no calls. Also
    --tool-parser."""
    reasoning_parser: str = field(default="auto", metadata=ADVANCED)
    """Dialect in which the model marks its reasoning; auto finds it by the chat template, none splits nothing off."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens, at most the model's own context; by default that, as far as KV memory holds
    it."""
    cache_dir: Path | None = None
    """Where downloads are kept; by default ~/.cache/trivium."""
    offline: bool = False
    """Never use the network; everything must be in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """What runs the model."""

    executor: Literal["auto", "native", "reference"] = "auto"
    """Executor: native (compiled plan, CPU kernels) or reference (op by op, float32); auto: native where possible."""
    weights: Literal["auto", "f32", "bf16", "int8", "int4"] = "auto"
    """Format in which weights are kept and multiplied: auto keeps the checkpoint's own; int8 and int4 are made at load,
    with a scale per 32 values, and lose precision."""
    activation_group: Literal["32", "64"] = field(default="32", metadata=ADVANCED)
    """Values of an activation that share a scale where weights are integers. 64 is faster from a few requests on and
    less exact; it needs weights with groups of 64 or more, which int8 then makes."""
    array_library: Literal["numpy", "torch"] = field(default="numpy", metadata=ADVANCED)
    """Array library of the reference executor; torch needs the hf extra."""
    device: str = field(default="cpu", metadata=ADVANCED)
    """Device of the torch array library."""
    threads: int | None = None
    """Compute threads; by default one per usable core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The compiled plan of the native executor."""

    plan: Path | None = field(default=None, metadata=ADVANCED)
    """Directory of a plan to run, as trivium compile -o wrote it; by default it is found in the cache, or compiled."""
    tune: Literal["auto", "off", "quick", "full"] = "auto"
    """How long tactics are timed: quick up to 15 s, full up to 60 s, off not at all (what was timed before is used);
    auto is quick for trivium compile, and off for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """KV memory and prefix cache."""

    kv_cache_memory: str | None = None
    """KV memory as a size such as 512MiB or 2GB; overrides kv_cache_fraction."""
    kv_cache_fraction: float = 0.5
    """Share of the memory left to this process (cgroup limit less weights) that holds KV, 0 to 0.95."""
    page_len: int = field(default=16, metadata=ADVANCED)
    """Tokens per KV page, 1 to 256."""
    kv_cache_dtype: Literal["auto", "f32", "bf16", "int8"] = "auto"
    """Element type of KV memory; auto is bf16, and f32 for weights in f32. int8 has a scale per token and head."""
    prefix_cache: bool = True
    """Reuse the KV of shared prefixes, exact to the token."""
    eviction: Literal["lru", "lfu", "slru", "fifo", "priority"] = field(default="lru", metadata=ADVANCED)
    """Which unused prefix goes first when memory runs short: lru the least recently used, lfu the least often found,
    slru one never found again, then the others, fifo the oldest, priority the lowest of cache_retention."""
    disk_cache: str | None = None
    """Directory and size, as PATH:GiB, of prefixes that are kept on disk: they outlive eviction and restarts. One
    server per directory."""
    host_cache: str | None = field(default=None, metadata=ADVANCED)
    """Host memory, such as 8GiB, for prefixes that a device's KV memory evicts; refused where the CPU executes."""
    kv_events: bool = field(default=False, metadata=ADVANCED)
    """Tell routers what the prefix cache holds: GET /v1/cache/events, with an admin key."""
    check_accounting: bool = field(default=False, metadata=ADVANCED)
    """Re-derive the owner of every page after each step and report differences (slow; for debugging)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """LoRA adapters."""

    lora: tuple[str, ...] = ()
    """Adapters to load at start, as NAME=PATH of a folder that peft wrote; requests choose one by model name. May be
    given several times."""
    max_loras: int = field(default=16, metadata=ADVANCED)
    """Most adapters that running answers may use at the same time; requests with others wait. Any number may be
    loaded."""
    max_lora_rank: int = field(default=64, metadata=ADVANCED)
    """Largest rank of an adapter; larger ones are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Who runs when."""

    max_num_seqs: int = 64
    """Most answers that run at the same time."""
    max_num_batched_tokens: int = 512
    """Most tokens in one step; longer prompts run in chunks."""
    order: Literal["srf", "fcfs", "lpm", "dfs", "hrrn", "program", "priority"] = "srf"
    """Who starts next: srf (shortest remaining prefill; the oldest gets half of each step), fcfs (arrival), lpm
    (longest cached prefix), dfs (depth first through the tree of waiting prompts), hrrn (highest response ratio),
    program (least left of the request and its program), priority (smaller numbers first)."""
    aging_s: float = field(default=30.0, metadata=ADVANCED)
    """Seconds after which a waiting request is overtaken by nobody, whatever the order."""
    admission: Literal["max-utilization", "guaranteed-no-evict", "static-batch"] = field(
        default="max-utilization", metadata=ADVANCED
    )
    """When a request may start: when its prompt and what running ones are expected to grow by fit (one may have to make
    room later), when its longest answer fits beside theirs (it then runs to its end), or only in batches."""
    preemption: Literal["recompute", "swap", "auto"] = field(default="recompute", metadata=ADVANCED)
    """How an answer that had to make room comes back: its KV is computed anew as far as the caches have lost it, or
    written at once to the disk or host cache and read back; auto: whichever is quicker by measured rates."""
    look_ahead: bool = field(default=True, metadata=ADVANCED)
    """Let requests that share a prefix wait until it was computed once."""
    program_idle_s: float = field(default=300.0, metadata=ADVANCED)
    """Seconds without a request after which a program (requests that share program.id) has ended; until it ends, the
    prefix cache drops its paths after all others. 0 drops them like others."""
    preempt_for_priority: bool = field(default=False, metadata=ADVANCED)
    """Let a waiting request of better priority take the place of running ones; needs order priority."""
    fair_share: bool = field(default=False, metadata=ADVANCED)
    """Share computed tokens between tenants (API key, or the request's user) by weighted deficit round robin."""
    tenant_weight: tuple[str, ...] = field(default=(), metadata=ADVANCED)
    """Weights of tenants for fair_share, as NAME=WEIGHT; 1 for those that are not named."""
    max_queue: int = field(default=1024, metadata=RELOADABLE)
    """Most answers that wait; more are refused with 503 and Retry-After."""
    max_queue_wait: float | None = field(default=None, metadata=ADVANCED)
    """Most seconds that a request may wait for its start; then it ends with 503 and Retry-After."""
    jump_forward: bool = field(default=True, metadata=ADVANCED)
    """Take the tokens that a constraint forces without drawing them, several in one step; answers are the same."""
    grammar_timeout_s: float = field(default=30.0, metadata=ADVANCED)
    """Most seconds that a request waits for its constraint to be compiled; then it is refused."""
    grammar_cache_memory: str = field(default="256MiB", metadata=ADVANCED)
    """About what compiled constraints that are kept for the next request may take; the least used go first."""
    tpot_target: float | None = field(default=None, metadata=ADVANCED)
    """Seconds between two tokens of a running stream: prefills get only as many tokens of a step as keep it."""
    ttft_target: float | None = field(default=None, metadata=ADVANCED)
    """Seconds from arrival to the first token; where tpot_target would miss it, prefills get more."""
    logprobs_mode: Literal["raw", "processed"] = field(default="raw", metadata=ADVANCED)
    """Whether logprobs describe the model's distribution, or the one drawn from."""
    seed: int | None = None
    """Seed from which seeds are drawn for requests that bring none; by default the system's entropy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on."""
    served_model_name: tuple[str, ...] = ()
    """Names under which the model is served; by default the model's name."""
    lora_root: tuple[Path, ...] = ()
    """Folders from which POST /v1/load_lora_adapter may load while serving; without any, that is off. May be given
    several times."""
    api_key: tuple[str, ...] = field(default=(), metadata=RELOADABLE)
    """API keys as NAME=KEY or KEY; without any, the API is open."""
    api_key_file: Path | None = field(default=None, metadata=RELOADABLE)
    """File of API keys, one NAME=KEY a line."""
    admin_key: tuple[str, ...] = field(default=(), metadata=RELOADABLE)
    """Keys of the admin routes, as NAME=KEY or KEY; without any, admin routes are off."""
    cors_origin: tuple[str, ...] = field(default=(), metadata=RELOADABLE)
    """Origins that browsers may call from; none by default."""
    max_body_bytes: int = field(default=16 * 1024 * 1024, metadata=RELOADABLE | ADVANCED)
    """Largest request body."""
    keep_alive_s: float = field(default=10.0, metadata=RELOADABLE | ADVANCED)
    """Seconds of silence after which a stream gets an SSE comment."""
    heartbeat_timeout_s: float = field(default=10.0, metadata=RELOADABLE | ADVANCED)
    """Seconds without a sign of the engine's loop after which /health is no longer 200."""
    drain_timeout_s: float = field(default=30.0, metadata=RELOADABLE | ADVANCED)
    """Seconds that running requests get after SIGTERM."""
    otlp_endpoint: str | None = field(default=None, metadata=ADVANCED)
    """OTLP/HTTP collector that gets a span per request, such as http://127.0.0.1:4318; needs the extra otel."""
    vllm_metric_names: bool = field(default=False, metadata=ADVANCED)
    """Show metrics a second time under vLLM's names, for dashboards that were made for it."""
    request_history: int = field(default=1000, metadata=ADVANCED)
    """Finished requests whose timelines GET /v1/requests/{id} still shows; 0 keeps none."""
    programs_dir: Path | None = field(default=None, metadata=ADVANCED)
    """Directory of published programs; without it, none can be published."""
    max_programs: int = field(default=64, metadata=ADVANCED)
    """Most programs that run inside the server at a time; more are refused with 503."""
    max_program_steps: int = field(default=10_000, metadata=ADVANCED)
    """Most primitives that a run of a program does, repetitions included."""
    max_program_branches: int = field(default=256, metadata=ADVANCED)
    """Most branches that a run of a program forks."""
    max_program_tokens: int = field(default=65_536, metadata=ADVANCED)
    """Most tokens that a run of a program has written."""
    max_program_s: float = field(default=600.0, metadata=ADVANCED)
    """Most seconds that a run of a program takes, its tools included."""
    max_program_tool_s: float = field(default=300.0, metadata=ADVANCED)
    """Seconds that a program waits for the result of a tool."""
    kv_events_buffer: int = field(default=10_000, metadata=ADVANCED)
    """Records of kv_events that can be read again with ?since=; older ones are reported as missed."""
    ssl_certfile: Path | None = None
    """TLS certificate chain (PEM)."""
    ssl_keyfile: Path | None = None
    """TLS private key (PEM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is said, and how."""

    log_level: Literal["debug", "info", "warning", "error"] = field(default="info", metadata=RELOADABLE)
    """Least important level that is logged."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What the engine writes down about its steps."""

    trace_steps: Path | None = field(default=None, metadata=ADVANCED)
    """File for what each step did and how long it took, to open in ui.perfetto.dev; an older one becomes FILE.1."""
    trace_steps_bytes: int = field(default=256 * 1024 * 1024, metadata=ADVANCED)
    """Most bytes of that file and FILE.1 together; the oldest steps are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Everything that an engine needs; `serve` adds `ServerOptions`."""

    model: ModelOptions = field(default_factory=ModelOptions)
    executor: ExecutorOptions = field(default_factory=ExecutorOptions)
    compile: CompileOptions = field(default_factory=CompileOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    adapters: AdapterOptions = field(default_factory=AdapterOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    log: LogOptions = field(default_factory=LogOptions)
    trace: TraceOptions = field(default_factory=TraceOptions)
