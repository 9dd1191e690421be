"""Flags: one per option, its help the option's docstring, its value the option's value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from trivium.base.errors import ConfigError
from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.cli.flags import given_params
from trivium.cli.program import COMMANDS, Command
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import options_of
from trivium.config.sampling import SamplingParams

BENCH = [o for record in (WorkloadOptions, ServeOptions, ReportOptions) for o in options_of(record)]
OPTIONS = [o for record in (EngineOptions, ServerOptions) for o in options_of(record) if o.name != "model"]


def squeezed(text: str) -> str:
    """Without line breaks, frames and indents."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "options"),
    [(["serve"], OPTIONS), (["generate"], options_of(SamplingParams)), (["bench", "serve"], BENCH)],
    ids=["serve", "generate", "bench serve"],
)
def test_every_option_has_a_flag_with_its_docstring_and_default(trivium: Run, words: list[str], options: Any) -> None:
    page = trivium(*words, "--help-all").out
    for option in options:
        assert f"{option.flag} " in page
        text = squeezed(page)
        assert set(option.meaning.split()) <= set(text.split())
        assert all(choice in text for choice in option.choices)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("gemma3-270m",), "model", "gemma3-270m"),
        (("--page-len", "4"), "page_len", 4),
        (("--page-len=4",), "page_len", 4),
        (("--no-prefix-cache",), "prefix_cache", False),
        (("--check-accounting",), "check_accounting", True),
        (("--served-model-name", "a,b", "--served-model-name", "c"), "served_model_name", ["a", "b", "c"]),
        (("--max-body-bytes", "1MiB"), "max_body_bytes", 1048576),
        (("--max-model-len", "none"), "max_model_len", None),
        (("--api-key", "alice=s3cret"), "api_key", ["alice=****"]),
        (("--tool-call-parser", "mistral"), "tool_call_parser", "mistral"),
        (("--tool-parser", "mistral"), "tool_call_parser", "mistral"),
        (("--cache-dir", "/nowhere/x"), "cache_dir", "/nowhere/x"),
        (("--kv-cache-fraction", "0.25"), "kv_cache_fraction", 0.25),
    ],
)
def test_flags_set_their_options_and_json_keeps_their_types(
    trivium: Run, words: tuple[str, ...], name: str, value: Any
) -> None:
    shown = json.loads(trivium("config", "show", "--json", *words).out)
    assert shown[name]["value"] == value
    assert type(shown[name]["value"]) is type(value)
    assert shown[name]["origin"].startswith("--")


def test_config_show_tells_where_each_value_comes_from(
    trivium: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trivium.toml"
    file.write_text('max_queue = 5\napi_key = ["bob=hush"]\n')
    monkeypatch.setenv("TRIVIUM_MAX_NUM_SEQS", "6")
    shown = trivium("config", "show", "--config", file, "--port", "7")
    origins = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()}
    assert origins["max_queue"] == ["5", str(file)]
    assert origins["max_num_seqs"] == ["6", "TRIVIUM_MAX_NUM_SEQS"]
    assert origins["port"] == ["7", "--port"]
    assert origins["page_len"] == ["16", "default"]
    assert "hush" not in shown.out + shown.err


def flags_on(page: str) -> set[str]:
    """The flags that have a line of their own on a help page."""
    return {line.split()[1] for line in page.splitlines() if line.startswith("│ --")}


@pytest.mark.parametrize(
    ("words", "options"), [(["serve"], OPTIONS), (["bench", "serve"], BENCH)], ids=["serve", "bench serve"]
)
def test_help_leaves_out_advanced_options_and_no_others(trivium: Run, words: list[str], options: Any) -> None:
    few, all_ = (flags_on(trivium(*words, flag).out) for flag in ("--help", "--help-all"))
    assert all_ - few == {option.flag for option in options if option.is_advanced}
    assert few < all_


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_help_says_how_many_options_help_all_adds(trivium: Run, command: Command, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    few, all_ = (trivium(*command.words, flag).out for flag in ("--help", "--help-all"))
    num_left_out = len(flags_on(all_) - flags_on(few))
    hint = f"Advanced options that are not shown: {num_left_out}; --help-all shows them."
    assert few.endswith(hint + "\n") == (num_left_out > 0)
    assert "not shown" not in all_
    assert len(flags_on(few)) <= 36
    if num_left_out == 0:
        assert few == all_


def test_an_advanced_option_is_a_flag_like_others(trivium: Run) -> None:
    shown = json.loads(trivium("config", "show", "--json", "--aging-s", "7").out)
    assert shown["aging_s"] == {**shown["aging_s"], "value": 7.0, "origin": "--aging-s"}


@pytest.mark.parametrize("words", [["serve"], ["chat"], ["generate"], ["doctor"], ["bench", "serve"]])
def test_help_fits_80_columns_and_says_how_lists_are_written(
    trivium: Run, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = trivium(*words, "--help-all").out
    assert max(map(len, page.splitlines())) <= 80
    assert ("Repeat the flag for several" in squeezed(page)) == (words != ["doctor"])


def test_sampling_flags_become_parameters_of_their_types() -> None:
    flags = {
        "temperature": ("0.5",),
        "top_k": ("-1",),
        "stop": ("a, b", "\n"),
        "stop_token_ids": ("1,2", "3"),
        "logit_bias": ("5=-100", "6=1.5,7=2"),
        "ignore_eos": True,
        "seed": ("18446744073709551615",),
    }
    assert given_params(flags) == {
        "temperature": 0.5,
        "top_k": -1,
        "stop": ("a, b", "\n"),
        "stop_token_ids": (1, 2, 3),
        "logit_bias": {5: -100.0, 6: 1.5, 7: 2.0},
        "ignore_eos": True,
        "seed": 2**64 - 1,
    }


@pytest.mark.parametrize("flags", [{"temperature": ("-1",)}, {"logit_bias": ("5",)}, {"n": ("0",)}, {"seed": ("-1",)}])
def test_sampling_flags_outside_their_limits_are_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(flags))):
        given_params(flags)


@pytest.mark.parametrize(
    ("flag", "text"), [("--concurrency", "0"), ("--sweep", "1,0"), ("--rate", "0"), ("--turns", "0")]
)
def test_bench_flags_outside_their_limits_are_refused(trivium: Run, flag: str, text: str) -> None:
    outcome = trivium("bench", "serve", flag, text)
    assert outcome.code == 2
    assert f"(from {flag}); it must be from" in outcome.err


def test_flags_are_read_alike_when_another_library_has_imported_pydantic(trivium: Run, tiny: Path) -> None:
    import pydantic  # noqa: F401, PLC0415  (cyclopts consults it when it is there)

    words = ("--max-tokens", "2", "--temperature", "0", "--stop", "x", "--logit-bias", "65=100", "--ignore-eos")
    outcome = trivium("generate", tiny, "-p", "abc", "--json", *words, "--kv-cache-memory", "4MiB")

    assert outcome.code == 0, outcome.err
    assert '"completion_tokens": 2' in outcome.out
