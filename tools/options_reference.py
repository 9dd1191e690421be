"""Write docs/reference/options.md from the records of options; with --check, fail when the file is behind them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from generated import write_or_compare

from trivium.base import env
from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.config.limits import RANGES
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import Option, options_of, sections_of
from trivium.config.resolve import CONFIG_VARIABLE
from trivium.config.sampling import SamplingParams

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "options.md"

HEAD = f"""# Options

Written by `tools/options_reference.py` from the records that the program itself reads. Every option of an engine, a
server or a benchmark is declared once; it has four names:

| where | how | example |
|---|---|---|
| flag | `--` and the name with dashes | `--max-num-seqs 16` |
| variable | `TRIVIUM_` and the name in capitals | `TRIVIUM_MAX_NUM_SEQS=16` |
| file (`--config`, `{CONFIG_VARIABLE}`) | the name, alone or under its section; YAML or TOML | `max_num_seqs: 16` |
| Python | the name, as an argument of `LLM` or `AsyncLLM` (options of an engine) | `max_num_seqs=16` |

Options that are *reloaded at SIGHUP* take the value of an edited file while the server runs. *Advanced* ones are shown
by `--help-all` only; `--help` shows the others, and how many these are.

A flag outranks a variable, a variable the file, the file the default; `trivium config show` prints every value and
where it came from. A switch is turned off by `--no-…`; a list is repeated or separated by commas; `none` is no value.
"""

PARTS: tuple[tuple[str, str, type], ...] = (
    ("Server", "Of `trivium serve`, beside those of an engine.", ServerOptions),
    ("Bench: the workload", "Of `trivium bench offline` and `trivium bench serve`.", WorkloadOptions),
    ("Bench: the load on a server", "Of `trivium bench serve`.", ServeOptions),
    ("Bench: the report", "Of `trivium bench serve`.", ReportOptions),
)
SAMPLING = """
## Sampling

Fields of `SamplingParams`, flags of `trivium generate` and (but for `n`, `best_of` and those of logprobs) of
`trivium chat`, and, by the same names, fields of requests (see the [HTTP reference](http.md)). They have no variables
and no keys in a file: a model's own recommendation (`generation_config.json`) is their default, where it has one. In
`generate` and `chat`, `--seed` and `--logprobs-mode` are these, not the engine's.
"""
_WORDS: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "switch", Path: "path"}


def page() -> str:
    """Write the whole page."""
    return "\n".join(lines()) + "\n"


def lines() -> Iterator[str]:
    """Write the page, line by line."""
    yield HEAD
    yield "## Engine"
    yield from ("", "Of every command that loads a model, and of `LLM`.")
    for section, record in sections_of(EngineOptions).items():
        yield from ("", f"### Section `{section}`", "")
        yield from rows(record)
    for title, where, record in PARTS:
        yield from ("", f"## {title}", "", where, "")
        yield from rows(record)
    yield SAMPLING
    yield from ("| field | flag | value | default | meaning |", "|---|---|---|---|---|")
    for option in options_of(SamplingParams):
        yield f"| `{option.name}` | `{option.flag}` | {value_of(option)} | {default_of(option)} | {escaped(option)} |"
    yield from ("", "## Variables that are no options", "", "| variable | meaning |", "|---|---|")
    yield from (f"| `{variable.name}` | {variable.meaning} |" for variable in env.VARIABLES)


def rows(record: type) -> Iterator[str]:
    """Write a table of a record's options."""
    yield "| flag | variable | key | value | default | meaning |"
    yield "|---|---|---|---|---|---|"
    for option in options_of(record):
        names = f"`{option.flag}` | `{option.variable}` | `{option.name}`"
        yield f"| {names} | {value_of(option)} | {default_of(option)} | {escaped(option)} |"


def value_of(option: Option) -> str:
    """Say in a few words what an option may be."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if get_origin(option.kind) is Mapping:
        return "ID=BIAS, repeated"
    what = _WORDS[get_args(option.kind)[0] if option.is_many else option.kind]
    if option.name in RANGES and option.record is not SamplingParams:
        low, high = RANGES[option.name]
        what += f", {number(low)} to {number(high)}"
    return f"{what}, repeated" if option.is_many else what


def number(limit: float) -> str:
    """Write a limit; those of machine words as powers."""
    power = next((bits for bits in (24, 31, 63, 64) if limit in {1 << bits, (1 << bits) - 1} and limit > 1), None)
    if power is None:
        return f"{limit:g}"
    return f"2^{power}" if limit == 1 << power else f"2^{power} - 1"


def default_of(option: Option) -> str:
    """Write a default as a file would."""
    if option.default in (None, (), {}):
        return "none"
    return f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"


def escaped(option: Option) -> str:
    """Write a meaning so that it can stand in a table."""
    meaning = f"{option.meaning} Reloaded at SIGHUP." if option.is_reloadable else option.meaning
    meaning = f"{meaning} *Advanced.*" if option.is_advanced else meaning
    return meaning.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, page, about=__doc__, behind="the options: run tools/options_reference.py"))
