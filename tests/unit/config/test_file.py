"""Configuration files: formats, sections, and what is wrong with a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.base.errors import ConfigError
from trivium.config.resolve import resolve

YAML = """
model: gemma3-270m
cache:
  kv-cache-memory: 64MiB
  prefix_cache: false
server:
  api_key: [a=1, b=2]
  cors-origin: http://x
max_model_len: null
"""
TOML = """
model = "gemma3-270m"
[cache]
kv-cache-memory = "64MiB"
prefix_cache = false
[server]
api_key = ["a=1", "b=2"]
cors-origin = "http://x"
"""


@pytest.mark.parametrize(("suffix", "text"), [(".yaml", YAML), (".toml", TOML)])
def test_yaml_and_toml_say_the_same(tmp_path: Path, suffix: str, text: str) -> None:
    file = tmp_path / f"trivium{suffix}"
    file.write_text(text)
    settings = resolve(environ={"TRIVIUM_CONFIG": str(file)})
    values = {name: setting.value for name, setting in settings.by_name.items() if setting.origin == str(file)}
    values.pop("max_model_len", None)
    assert values == {
        "model": "gemma3-270m",
        "kv_cache_memory": "64MiB",
        "prefix_cache": False,
        "api_key": ("a=1", "b=2"),
        "cors_origin": ("http://x",),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("page_lenn: 3", "there is no option 'page_lenn'; did you mean page_len"),
        ("cache: {port: 3}", "section cache has no option 'port'"),
        ("page_len: 3\ncache: {page-len: 4}", "page_len is set twice"),
        ("page_len: 3\npage_len: 4", "page_len is set twice"),
        ("- 1", "must be a mapping"),
        ("a: [", "is not YAML"),
        ("page_len: '16'", "page_len is '16'.*whole number"),
        ("page_len: 0", r"page_len is 0 \(from .*bad\.yaml\); it must be from 1 to 256"),
        ("prefix_cache: 1", "true or false"),
        ("api_key: 7", "a list"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(file=file, environ={})


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yml"
    file.write_text("# nothing yet\n")
    assert {setting.origin for setting in resolve(file=file, environ={}).by_name.values()} == {"default"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("missing.yaml", "odd.ini"):
        if name == "odd.ini":
            (tmp_path / name).write_text("x")
        with pytest.raises(ConfigError, match=name):
            resolve(file=tmp_path / name, environ={})
