"""Where chat templates are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trivium.base.errors import CheckpointError, ConfigError
from trivium.tokens.template_source import find_template_source


def config(directory: Path, value: object) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}), encoding="utf-8")
    return directory


def found(directory: Path | None = None, override: str | None = None, **metadata: str) -> dict[str, str] | None:
    keys = {f"tokenizer.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return find_template_source(override=override, directory=directory, metadata=keys)


def test_the_configuration_holds_one_text_or_a_list_of_named_ones(tmp_path: Path) -> None:
    assert found(config(tmp_path, "a")) == {"default": "a"}
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    assert found(config(tmp_path, named)) == {"default": "a", "tool_use": "b"}


def test_a_jinja_file_goes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("j", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("t", encoding="utf-8")
    assert found(config(tmp_path, "a")) == {"default": "j", "tool_use": "t"}


def test_gguf_files_hold_templates_by_name() -> None:
    assert found(chat_template="a", chat_template__tool_use="b") == {"default": "a", "tool_use": "b"}


def test_an_override_is_a_file_or_a_text_and_goes_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("from file", encoding="utf-8")
    assert found(config(tmp_path, "a"), override=str(file)) == {"default": "from file"}
    assert found(config(tmp_path, "a"), override="{{ x }}") == {"default": "{{ x }}"}


def test_an_override_that_is_neither_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'nowhere\.jinja', which is no file"):
        found(override="nowhere.jinja")


def test_no_template_anywhere_is_none(tmp_path: Path) -> None:
    assert found(tmp_path) is None


@pytest.mark.parametrize("value", [[1], 7, [{"name": "x"}]])
def test_a_malformed_configuration_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match="neither a text nor a list"):
        found(config(tmp_path, value))
