"""`trivium describe`: a model's shape, its weights, its memory, and the options it would run with."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.cli.flags import ConfigFile, ModelName, flags_of, settle
from trivium.cli.terminal import fetching, table, write, write_json
from trivium.config.options import EngineOptions, ScheduleOptions
from trivium.config.sizes import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from trivium.config.model import ModelConfig, RopeConfig
    from trivium.config.options import ModelOptions
    from trivium.config.resolve import Settings
    from trivium.weights.stored import Checkpoint

_ELEMENT_BYTES = 4
"""K and V are kept in float32."""


@flags_of(EngineOptions, without=("model",), aside=(ScheduleOptions,))
def describe(
    model: ModelName = None,
    /,
    *,
    build: Annotated[
        bool, Parameter(help="Describe this build instead of a model.", negative="", show_default=False)
    ] = False,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="", show_default=False)] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Show a model without loading its weights: configuration, tensors, KV bytes per token, rope, options.

    Raises:
        ModelError: The model cannot be found, fetched or understood.
    """
    settings = settle((EngineOptions,), flags, config=config, model=model)
    sections = describe_build() if build else describe_model(settings)
    if json:
        write_json(sections)
    else:
        write("\n\n".join(_as_text(title, content) for title, content in sections.items()))
    return 0


def describe_build() -> dict[str, Any]:
    """Say what this installation was built with and will use."""
    import platform  # noqa: PLC0415  (start-up time)

    from trivium import __version__  # noqa: PLC0415
    from trivium.kernels import native  # noqa: PLC0415

    return {
        "build": {
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            **asdict(native.describe()),
        }
    }


def describe_model(settings: Settings) -> dict[str, Any]:
    """Read a model's configuration and the headers of its weights.

    Returns:
        Section titles to facts: a mapping, or a list of rows that are mappings.
    """
    from trivium.models import kv_spec, parse_config  # noqa: PLC0415  (start-up time)
    from trivium.weights.checkpoint import open_checkpoint  # noqa: PLC0415
    from trivium.weights.resolve import resolve_model  # noqa: PLC0415

    options = settings.build(EngineOptions)
    with fetching() as progress:
        found = resolve_model(options.model, progress=progress)
    checkpoint = open_checkpoint(found.path)
    try:
        config = parse_config(checkpoint.hf_config)
        spec = kv_spec(config, page_len=options.cache.page_len, element_bytes=_ELEMENT_BYTES)
        return {
            "model": {
                "name": found.name,
                "path": found.path,
                "licence": found.licence,
                "format": checkpoint.format,
                "parameters": sum(tensor.num_elements for tensor in checkpoint.tensors.values()),
                "fingerprint": checkpoint.fingerprint,
            },
            "configuration": _configuration(config),
            "rope": _ropes(config),
            "tensors": _formats(checkpoint),
            "kv cache": [
                {
                    "layers": len(group.layers),
                    "kind": group.kind,
                    "window": group.window,
                    "bytes per token": group.bytes_per_token,
                    f"bytes per page of {spec.page_len}": group.bytes_per_token * spec.page_len,
                }
                for group in spec.groups
            ],
            "chat": _chat(options.model, found.path, checkpoint),
            "sampling defaults": dict(checkpoint.generation_config),
            "options": [
                {"option": name, "value": setting.shown, "origin": setting.origin}
                for name, setting in settings.by_name.items()
            ],
        }
    finally:
        checkpoint.close()


def _chat(options: ModelOptions, path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """Say what the chat template shows to the model, and in which dialects the model is taken to answer."""
    from trivium.grammar.detect import choose_dialects  # noqa: PLC0415  (start-up time)
    from trivium.tokens.chat import find_template  # noqa: PLC0415

    directory = None if checkpoint.format == "gguf" else path
    template = find_template(override=options.chat_template, directory=directory, metadata=checkpoint.metadata)
    dialects = choose_dialects(
        () if template is None else template.sources.values(),
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )
    return {
        "template": "none" if template is None else ", ".join(template.sources),
        "shows tools": template is not None and template.uses("tools"),
        "shows documents": template is not None and template.uses("documents"),
        "tool calls": dialects.tools or "not read",
        "reasoning": dialects.reasoning or "not split off",
    }


def _configuration(config: ModelConfig) -> dict[str, Any]:
    facts = asdict(config)
    del facts["layers"]
    return facts


def _ropes(config: ModelConfig) -> list[dict[str, Any]]:
    """List the kinds of layers by what they see and how positions enter them."""
    kinds = Counter((layer.window, layer.rope) for layer in config.layers)
    return [{"layers": count, "window": window, **_rope(rope)} for (window, rope), count in kinds.items()]


def _rope(rope: RopeConfig | None) -> dict[str, Any]:
    if rope is None:
        return {"kind": "none"}
    scaling = {f.name: getattr(rope, f.name) for f in fields(rope) if getattr(rope, f.name) != f.default}
    for name in ("kind", "theta", "rotary_dim", "original_max_positions"):
        scaling.pop(name, None)
    return {
        "kind": rope.kind,
        "theta": rope.theta,
        "rotated": rope.rotary_dim,
        "trained positions": rope.original_max_positions,
        "scaling": _pairs(scaling) or "-",
    }


def _formats(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Tensors by format, the largest share of bytes first."""
    from trivium.weights.verify import summarize  # noqa: PLC0415  (start-up time)

    summary = summarize(checkpoint)
    return [
        {
            "format": name,
            "tensors": share.num_tensors,
            "bytes": share.num_bytes,
            "size": format_bytes(share.num_bytes),
            "share": f"{share.num_bytes / max(1, summary.num_bytes):.1%}",
        }
        for name, share in summary.formats.items()
    ]


def _as_text(title: str, content: Any) -> str:
    if isinstance(content, dict):
        rows = [(name, _text(value)) for name, value in content.items()] or [("-", "")]
        return f"{title}\n" + _indented(table(("", ""), rows).split("\n", 1)[1])
    columns = list(dict.fromkeys(name for row in content for name in row))
    cells = [[_text(row.get(name)) for name in columns] for row in content]
    return f"{title}\n" + _indented(table(columns, cells))


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.split("\n"))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return _pairs(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _pairs(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in facts.items())
