"""The composition root: the one file that names concrete classes of all floors.

::

    options ─► resolve_model ─► open_checkpoint ─► parse_config ─┬─► Frontend    (server: tokenizer, template, limits)
                                                                 └─► EngineLoop  (engine: graph, weights, KV, scheduler)

Run as a program (`python -m trivium.assembly FOLDER EPOCH PARENT`, options on standard input) it is the engine process.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trivium.base.clock import SystemClock
from trivium.base.errors import ConfigError
from trivium.config.options import EngineOptions
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from trivium.cache.spec import KVSpec
    from trivium.config.model import ModelConfig
    from trivium.engine.client import EngineClient
    from trivium.engine.loop import EngineLoop
    from trivium.ir.graph import Graph
    from trivium.runtime.reference import ReferenceExecutor
    from trivium.tokens.chat import ChatTemplate
    from trivium.tokens.tokenizer import Tokenizer
    from trivium.weights.checkpoint import Checkpoint
    from trivium.weights.resolve import ResolvedModel

logger = logging.getLogger(__name__)

Report = Callable[[str, int, int], None]
"""Progress as (stage, done, total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model that was found and understood; no weight has been read."""

    name: str
    path: Path
    licence: str | None
    checkpoint: Checkpoint
    config: ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """What a server, or `LLM`, needs besides the engine."""

    name: str
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    generation_config: Mapping[str, Any]
    precision: str
    """Weight formats of the checkpoint and their share, e.g. `q4_1 97 %, f32 3 %`."""
    licence: str | None


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


def find_model(options: EngineOptions, report: Report = silent) -> ResolvedModel:
    """Find the model, and fetch it when it is not here.

    Raises:
        ModelError: It cannot be found or fetched.
    """
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415  (start-up time)

    return resolve_model(options.model, progress=lambda news: report(news.stage, news.done_bytes, news.total_bytes))


def open_model(options: EngineOptions, report: Report = silent) -> OpenModel:
    """Find the model, fetch it when it is not here, and read its configuration.

    Raises:
        ModelError: It cannot be found, fetched or understood.
    """
    from trivium.models import parse_config  # noqa: PLC0415  (start-up time)
    from trivium.weights.checkpoint import open_checkpoint  # noqa: PLC0415

    resolved = find_model(options, report)
    checkpoint = open_checkpoint(resolved.path)
    return OpenModel(
        name=resolved.name,
        path=resolved.path,
        licence=resolved.licence,
        checkpoint=checkpoint,
        config=parse_config(checkpoint.hf_config),
    )


def load_tokenizer(options: EngineOptions, model: OpenModel) -> Tokenizer:
    """Load the model's tokenizer, or the one that was asked for instead."""
    from trivium.tokens import load  # noqa: PLC0415  (start-up time)

    if options.model.tokenizer is not None:
        path = Path(options.model.tokenizer)
        if not path.exists():
            raise ConfigError(f"tokenizer is '{path}', which does not exist; give a directory or a tokenizer.json")
        return load.load_tokenizer(path)
    if model.checkpoint.format == "gguf":
        return load.load_tokenizer_from_gguf(model.checkpoint.metadata)
    return load.load_tokenizer(model.path)


def load_frontend(options: EngineOptions, report: Report = silent, *, model: OpenModel | None = None) -> Frontend:
    """Open a model, unless it is open already, for the side that talks to users; reads no weight."""
    model = model or open_model(options, report)
    tokenizer = load_tokenizer(options, model)
    return Frontend(
        name=model.name,
        config=model.config,
        tokenizer=tokenizer,
        chat_template=load_chat_template(options, model, tokenizer),
        generation_config=model.checkpoint.generation_config,
        precision=precision_of(model.checkpoint),
        licence=model.licence,
    )


def load_chat_template(options: EngineOptions, model: OpenModel, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Find the chat template: the option, then the checkpoint's own; `None` when there is none."""
    from trivium.tokens.chat import find_template  # noqa: PLC0415  (start-up time)

    return find_template(
        override=options.model.chat_template,
        directory=None if model.checkpoint.format == "gguf" else model.path,
        metadata=model.checkpoint.metadata,
        tokenizer=tokenizer,
    )


def precision_of(checkpoint: Checkpoint) -> str:
    """Name the weight formats by their share of the bytes, largest first."""
    totals: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        totals[tensor.format] = totals.get(tensor.format, 0) + tensor.num_bytes
    whole = sum(totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * size / whole:.0f} %" for name, size in ranked)


def build_engine(
    options: EngineOptions,
    report: Report = silent,
    *,
    model: OpenModel | None = None,
    tokenizer: Tokenizer | None = None,
) -> EngineLoop:
    """Load weights and build the loop that runs them.

    Args:
        options: Everything that was asked for.
        report: Told how loading goes.
        model: From `open_model`, when it is open already.
        tokenizer: The model's, when it is loaded already.

    Raises:
        ModelError: The checkpoint is not what its configuration says.
        ConfigError: Options contradict each other or the machine.
    """
    from trivium.engine.admit import ModelLimits  # noqa: PLC0415  (start-up time)
    from trivium.engine.loop import EngineLoop  # noqa: PLC0415
    from trivium.ir.rope import rope_variant  # noqa: PLC0415
    from trivium.models import build_graph, kv_spec  # noqa: PLC0415
    from trivium.runtime.memory import plan_kv  # noqa: PLC0415
    from trivium.schedule.scheduler import Scheduler  # noqa: PLC0415
    from trivium.tokens.bad_words import spellings  # noqa: PLC0415

    began_s = time.perf_counter()
    model = model or open_model(options, report)
    config = model.config
    tokenizer = tokenizer or load_tokenizer(options, model)
    graph = build_graph(config)
    spec = kv_spec(config, page_len=options.cache.page_len, element_bytes=4)
    budget = plan_kv(spec, options.cache, weight_bytes=float32_bytes(graph))
    max_model_len = _max_model_len(options, config, budget.num_tokens)
    executor = _build_executor(options, model, graph, spec, budget.num_pages, report)
    scheduler = Scheduler(
        options=options.schedule,
        spec=spec,
        num_pages=executor.num_pages,
        max_model_len=max_model_len,
        prefix_cache=options.cache.prefix_cache,
        clock=SystemClock(),
    )
    ropes = tuple(dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None))
    fingerprint = model.checkpoint.fingerprint
    return EngineLoop(
        executor=executor,
        scheduler=scheduler,
        tokenizer=tokenizer,
        limits=ModelLimits(
            vocab_size=config.vocab_size,
            max_model_len=max_model_len,
            end_ids=end_ids(model.checkpoint, config, tokenizer),
            namespace=(fingerprint, "f32"),
            rope_variant=lambda reach: tuple(rope_variant(rope, reach) for rope in ropes),
            bad_word_ids=lambda text: spellings(tokenizer, text),
            logprobs_mode=options.schedule.logprobs_mode,
        ),
        info={
            "model": model.name,
            "architecture": config.architecture,
            "precision": precision_of(model.checkpoint),
            "arithmetic": "float32",
            "executor": "reference",
            "fingerprint": fingerprint,
            "max_model_len": max_model_len,
            "vocab_size": config.vocab_size,
            "kv_cache": budget.explanation,
            "kv_tokens": budget.num_tokens,
            "weights": format_bytes(executor.weight_bytes),
            "load_seconds": round(time.perf_counter() - began_s, 3),
        },
        clock=SystemClock(),
        check_accounting=options.cache.check_accounting,
    )


def end_ids(checkpoint: Checkpoint, config: ModelConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Collect the model's end tokens: generation_config.json, else config.json, and the tokenizer's own."""
    declared = checkpoint.generation_config.get("eos_token_id", config.eos_token_ids)
    listed = declared if isinstance(declared, (list, tuple)) else () if declared is None else (declared,)
    return tuple(dict.fromkeys((*(int(token) for token in listed), *tokenizer.eos_ids)))


def float32_bytes(graph: Graph) -> int:
    """Bytes of a graph's parameters in float32; a table that is looked up and multiplied by counts twice."""
    twice = {node.inputs[1] for node in graph.nodes if node.op == "embed"}
    twice &= {node.inputs[1] for node in graph.nodes if node.op == "gemm"}
    return sum(4 * math.prod(shape) * (2 if name in twice else 1) for name, shape in graph.param_shapes().items())


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


def _build_executor(
    options: EngineOptions, model: OpenModel, graph: Graph, spec: KVSpec, num_pages: tuple[int, ...], report: Report
) -> ReferenceExecutor:
    from trivium.runtime.reference import ReferenceExecutor  # noqa: PLC0415  (start-up time)
    from trivium.weights.bind import bind_parameters  # noqa: PLC0415

    if options.executor.threads is not None:
        from trivium.kernels.native import set_num_threads  # noqa: PLC0415

        set_num_threads(options.executor.threads)
    parameters = bind_parameters(model.checkpoint, graph.param_shapes(), model.config)
    return ReferenceExecutor(
        graph,
        parameters,
        model.config,
        spec,
        num_pages,
        max_logit_rows=options.schedule.max_num_seqs,
        array_library=options.executor.array_library,
        device=options.executor.device,
        report=lambda done, total: report("loading weights", done, total),
    )


def engine_client(
    options: EngineOptions, *, heartbeat_timeout_s: float = 10.0, report: Report | None = None
) -> EngineClient:
    """Make the client of an engine process for these options; it starts with `start`.

    The model must have been found before (`find_model`): the engine process looks for it on this machine only.
    """
    from trivium.engine.client import EngineClient  # noqa: PLC0415  (start-up time)

    return EngineClient(
        [sys.executable, "-m", "trivium.assembly"],
        pack_options(replace(options, model=replace(options.model, offline=True))),
        seed=options.schedule.seed,
        heartbeat_timeout_s=heartbeat_timeout_s,
        on_progress=report,
    )


def pack_options(options: EngineOptions) -> bytes:
    """Write options as JSON for the engine process."""
    return msgspec.json.encode(options, enc_hook=str)


def unpack_options(payload: bytes) -> EngineOptions:
    """Read what `pack_options` wrote."""

    def decode(kind: type, value: object) -> object:
        return kind(value)

    return msgspec.json.decode(payload, type=EngineOptions, dec_hook=decode)


def main(argv: list[str]) -> int:
    """Be the engine process; returns the exit code."""
    from trivium.base import log  # noqa: PLC0415  (start-up time)
    from trivium.engine.process import EngineProcess  # noqa: PLC0415

    folder, epoch, parent_pid = Path(argv[0]), int(argv[1]), int(argv[2])
    options = unpack_options(sys.stdin.buffer.read())
    log.set_up(level=options.log.log_level, form=options.log.log_format)
    with suppress(KeyboardInterrupt):
        return EngineProcess(folder, epoch, parent_pid).serve(lambda report: build_engine(options, report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
