"""Where a model keeps its chat template; finds the text and runs nothing.

In order: the override; `chat_template.jinja` with `additional_chat_templates/*.jinja`; `chat_template.json`;
`chat_template` of tokenizer_config.json, a text or a list of named ones; a GGUF file's `tokenizer.chat_template`,
with `tokenizer.chat_template.NAME` beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.base.errors import CheckpointError, ConfigError
from trivium.tokens.load import read_json

_GGUF_KEY = "tokenizer.chat_template"


def find_template_source(
    *, override: str | None, directory: Path | None, metadata: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return template texts by name (`default`, `tool_use`, …), or `None` when there is none.

    Raises:
        ConfigError: The override is neither a file nor template text.
        CheckpointError: A file of the model is malformed.
    """
    if override is not None:
        return {"default": _read_override(override)}
    found = _from_directory(directory) if directory is not None and directory.is_dir() else {}
    return found or _from_gguf(metadata) or None


def _read_override(override: str) -> str:
    """A text with Jinja marks is a template; anything else must name a file."""
    if "{{" in override or "{%" in override:
        return override
    path = Path(override)
    if not path.is_file():
        raise ConfigError(f"chat_template is '{override}', which is no file; give a Jinja file, or template text")
    return _read_text(path)


def _from_directory(directory: Path) -> dict[str, str]:
    if (file := directory / "chat_template.jinja").is_file():
        more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        return {"default": _read_text(file)} | {path.stem: _read_text(path) for path in more}
    for name in ("chat_template.json", "tokenizer_config.json"):
        if found := _named(read_json(directory / name).get("chat_template"), directory / name):
            return found
    return {}


def _named(value: Any, file: Path) -> dict[str, str]:
    if not value:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"chat_template in {file} is neither a text nor a list of named templates") from error


def _from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    found = {"default": metadata[_GGUF_KEY]} if isinstance(metadata.get(_GGUF_KEY), str) else {}
    prefix = f"{_GGUF_KEY}."
    more = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
    return found | {name: text for name, text in more.items() if isinstance(text, str)}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {path} cannot be read: {error}") from error
