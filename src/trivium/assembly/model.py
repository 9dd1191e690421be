"""Find, open and understand a model: what server and engine both need before any weight is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivium.base.errors import ConfigError
from trivium.config.options import EngineOptions
from trivium.grammar.detect import ModelDialects, choose_dialects

if TYPE_CHECKING:
    from trivium.config.model import ModelConfig
    from trivium.tokens.chat import ChatTemplate
    from trivium.tokens.tokenizer import Tokenizer
    from trivium.weights.checkpoint import Checkpoint
    from trivium.weights.resolve import ResolvedModel

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
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"

    @property
    def dialects(self) -> ModelDialects:
        """How the model writes tool calls and marks its reasoning."""
        return self.dialects_with(self.chat_template)

    def dialects_with(self, template: ChatTemplate | None) -> ModelDialects:
        """Likewise under another chat template.

        Raises:
            ConfigError: A parser's name is no dialect's.
        """
        return choose_dialects(
            () if template is None else template.sources.values(),
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
        )


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
        tool_call_parser=options.model.tool_call_parser,
        reasoning_parser=options.model.reasoning_parser,
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


def end_ids(checkpoint: Checkpoint, config: ModelConfig, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Collect the model's end tokens: generation_config.json, else config.json, and the tokenizer's own."""
    declared = checkpoint.generation_config.get("eos_token_id", config.eos_token_ids)
    listed = declared if isinstance(declared, (list, tuple)) else () if declared is None else (declared,)
    return tuple(dict.fromkeys((*(int(token) for token in listed), *tokenizer.eos_ids)))
