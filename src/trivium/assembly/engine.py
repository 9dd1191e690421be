"""Build the engine loop: executor, KV budget, scheduler, limits."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from trivium.assembly.adapters import load_asked, make_adapters, restore
from trivium.assembly.model import OpenModel, Report, end_ids, load_tokenizer, open_model, precision_of, silent
from trivium.assembly.tiers import make_tiers, refuse_host_cache, tier_info, transfer_bytes
from trivium.base.clock import SystemClock
from trivium.base.errors import ConfigError
from trivium.config.options import EngineOptions
from trivium.config.sizes import format_bytes, parse_bytes

if TYPE_CHECKING:
    from trivium.assembly.choice import ExecutorParts
    from trivium.cache.spec import KVSpec
    from trivium.config.model import ModelConfig
    from trivium.engine.adapters import AdapterRecord, EngineAdapters
    from trivium.engine.admit import ModelLimits
    from trivium.engine.compiling import Compiling
    from trivium.engine.loop import EngineLoop
    from trivium.grammar.library import Vocabulary
    from trivium.runtime.executor import Executor
    from trivium.schedule.scheduler import Scheduler
    from trivium.tiers.lower import LowerTiers
    from trivium.tokens.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def build_engine(
    options: EngineOptions,
    report: Report = silent,
    *,
    model: OpenModel | None = None,
    tokenizer: Tokenizer | None = None,
    restored: Sequence[AdapterRecord] | None = None,
) -> EngineLoop:
    """Load weights and build the loop that runs them.

    Args:
        options: Everything that was asked for.
        report: Told how loading goes.
        model: From `open_model`, when it is open already.
        tokenizer: The model's, when it is loaded already.
        restored: The adapters of the engine before this one; `None`: those of the options.

    Raises:
        ModelError: The checkpoint is not what its configuration says.
        ConfigError: Options contradict each other or the machine.
    """
    from trivium.assembly.choice import choose_executor  # noqa: PLC0415  (start-up time)
    from trivium.engine.loop import EngineLoop  # noqa: PLC0415
    from trivium.runtime.memory import plan_kv  # noqa: PLC0415
    from trivium.schedule.scheduler import Scheduler  # noqa: PLC0415

    began_s = time.perf_counter()
    model = model or open_model(options, report)
    config = model.config
    tokenizer = tokenizer or load_tokenizer(options, model)
    _set_threads(options)
    parts = choose_executor(options, model, report)
    refuse_host_cache(options, parts)
    spec = parts.kv_spec
    budget = plan_kv(spec, options.cache, weight_bytes=parts.weight_bytes, transfer_bytes=transfer_bytes(options))
    max_model_len = _max_model_len(options, config, budget.num_tokens)
    executor = parts.make(budget.num_pages, report)
    tiers = make_tiers(options, parts, model, executor)
    scheduler = Scheduler(
        options.schedule,
        spec,
        executor.num_pages,
        max_model_len,
        prefix_cache=options.cache.prefix_cache,
        eviction=options.cache.eviction,
        clock=SystemClock(),
        tiers=tiers,
        num_adapter_slots=options.adapters.max_loras,
    )
    loop = EngineLoop(
        executor=executor,
        scheduler=scheduler,
        tokenizer=tokenizer,
        limits=_limits(options, model, parts, tokenizer, max_model_len),
        info={
            "model": model.name,
            "architecture": config.architecture,
            "precision": precision_of(model.checkpoint),
            "arithmetic": parts.arithmetic,
            "executor": parts.name,
            "fingerprint": model.checkpoint.fingerprint,
            "max_model_len": max_model_len,
            "vocab_size": config.vocab_size,
            "kv_cache": budget.explanation,
            "kv_tokens": budget.num_tokens,
            "kv_bytes": budget.num_bytes,
            **tier_info(options),
            "kv_events": options.cache.kv_events,
            "weights": format_bytes(executor.weight_bytes),
            "load_seconds": round(time.perf_counter() - began_s, 3),
        },
        clock=SystemClock(),
        check_accounting=options.cache.check_accounting,
        tiers=tiers,
    )
    _load_adapters(loop, make_adapters(options, model, executor, scheduler.slots), options, report, restored)
    loop.compiling = _compiling(options, tokenizer, loop.limits)
    if options.cache.kv_events:
        _follow_cache(loop, scheduler, tiers, spec)
    return _traced(options, loop, executor, scheduler)


def _load_adapters(
    loop: EngineLoop,
    adapters: EngineAdapters,
    options: EngineOptions,
    report: Report,
    restored: Sequence[AdapterRecord] | None,
) -> None:
    if restored is None:
        load_asked(adapters, options, report)
    else:
        restore(adapters, restored)
    loop.adapters = adapters
    loop.info["adapters"] = [msgspec.to_builtins(record) for record in adapters.records]


def _follow_cache(loop: EngineLoop, scheduler: Scheduler, tiers: LowerTiers | None, spec: KVSpec) -> None:
    from trivium.engine.kv_events import KVEvents  # noqa: PLC0415  (only when asked for)

    loop.kv_events = events = KVEvents(len(spec.groups), spec.page_len)
    scheduler.follow_cache(events)
    if tiers is not None:
        events.cleared(tiers.stats())
        tiers.worker.listen(events)


def _traced(options: EngineOptions, loop: EngineLoop, executor: Executor, scheduler: Scheduler) -> EngineLoop:
    if options.trace.trace_steps is not None:
        from trivium.engine.step_trace import LoopTrace, StepTrace  # noqa: PLC0415  (only when asked for)

        trace = StepTrace(options.trace.trace_steps, options.trace.trace_steps_bytes)
        LoopTrace(trace, loop, executor, scheduler)
    return loop


def _compiling(options: EngineOptions, tokenizer: Tokenizer, limits: ModelLimits) -> Compiling | None:
    """Make what has constraints compiled; nothing where no token ends an answer, so that no sentence could end."""
    from trivium.engine.compiling import Compiling  # noqa: PLC0415  (start-up time)
    from trivium.grammar.compiler import GrammarCompiler  # noqa: PLC0415

    def vocabulary() -> Vocabulary:
        from trivium.grammar.library import Vocabulary  # noqa: PLC0415  (start-up time: few need it)

        return Vocabulary(tokenizer, limits.end_ids, vocab_size=limits.vocab_size)

    if not limits.end_ids:
        return None
    kept_bytes = parse_bytes(options.schedule.grammar_cache_memory, option="grammar_cache_memory")
    return Compiling(GrammarCompiler(vocabulary, max_kept_bytes=kept_bytes), options.schedule.grammar_timeout_s)


def _limits(
    options: EngineOptions, model: OpenModel, parts: ExecutorParts, tokenizer: Tokenizer, max_model_len: int
) -> ModelLimits:
    from trivium.engine.admit import ModelLimits  # noqa: PLC0415  (start-up time)
    from trivium.ir.rope import rope_variant  # noqa: PLC0415
    from trivium.tokens.bad_words import spellings  # noqa: PLC0415

    config = model.config
    ropes = tuple(dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None))
    return ModelLimits(
        vocab_size=config.vocab_size,
        max_model_len=max_model_len,
        end_ids=end_ids(model.checkpoint, config, tokenizer),
        namespace=(model.checkpoint.fingerprint, parts.kv_dtype, parts.arithmetic),
        rope_variant=lambda reach: tuple(rope_variant(rope, reach) for rope in ropes),
        bad_word_ids=lambda text: spellings(tokenizer, text),
        logprobs_mode=options.schedule.logprobs_mode,
        eviction=options.cache.eviction,
        page_len=parts.kv_spec.page_len,
        takes_priority=options.schedule.order == "priority",
        jump_forward=options.schedule.jump_forward,
    )


def _max_model_len(options: EngineOptions, config: ModelConfig, kv_tokens: int) -> int:
    asked = options.model.max_model_len
    if asked is None:
        return min(config.max_positions, kv_tokens)
    if asked < 1:
        raise ConfigError(f"max_model_len is {asked}; it must be at least 1")
    if asked > config.max_positions:
        raise ConfigError(
            f"max_model_len is {asked}, but the model has {config.max_positions} positions, rope scaling included; "
            "beyond them its answers are noise. Lower --max-model-len, or stretch them with rope_scaling in the "
            "checkpoint's configuration"
        )
    if asked > kv_tokens:
        logger.warning(
            "max_model_len is %d, but KV memory holds %d tokens: longer prompts are refused, longer answers end with "
            "'length'; raise --kv-cache-memory",
            asked,
            kv_tokens,
        )
    return asked


def _set_threads(options: EngineOptions) -> None:
    if options.executor.threads is not None:
        from trivium.kernels.native import set_num_threads  # noqa: PLC0415  (start-up time)

        set_num_threads(options.executor.threads)
