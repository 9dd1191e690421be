"""`trivium run`: a program on a tiny model here, or inside a server, with its tools called where it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run
from support.server_process import ServerProcess
from support.tiny_engine import tiny_model

SOURCE = """
import trivium.lang as sgl


def shout(word):
    return word.upper()


@sgl.function(tools={"shout": shout})
def greet(s, who, times=1):
    s += "hello " + who
    s += sgl.gen("x", max_tokens=4, temperature=0, ignore_eos=True)
    s += sgl.tool("shout", {"word": who}, into="loud")
    s += s["loud"]
    s += sgl.gen("y", max_tokens=4, temperature=0, ignore_eos=True)


@sgl.function
def untraceable(s, who):
    s += f"{who}" + sgl.gen("x", max_tokens=4)


not_a_program = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "greeting.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model(), "--kv-cache-memory", "1MiB", "--threads", "1") as running:
        yield running


def test_a_program_runs_alike_here_and_in_a_server(trivium: Run, tiny: Path, file: Path, server: ServerProcess) -> None:
    program = f"{file}:greet"
    here = trivium("run", program, "--args", "who=Ada", "--model", tiny, "--json", "--kv-cache-memory", "4MiB")
    assert here.code == 0, here.err
    there = trivium("run", program, "-a", "who=Ada", "--url", server.url, "--json")
    assert there.code == 0, there.err
    own, sent = json.loads(here.out), json.loads(there.out)
    assert own["variables"] == sent["variables"]
    assert own["variables"]["loud"] == "ADA"
    assert own["text"] == sent["text"]


def test_variables_are_printed_by_name(trivium: Run, tiny: Path, file: Path) -> None:
    outcome = trivium("run", f"{file}:greet", "-a", "who=Ada", "--model", tiny, "--kv-cache-memory", "4MiB")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("hello Ada")
    assert "loud: ADA" in lines
    assert any(line.startswith("y: ") for line in lines)


def test_explain_prints_the_trace_and_runs_nothing(trivium: Run, file: Path) -> None:
    outcome = trivium("run", f"{file}:greet", "--explain")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("program greet(who")
    refused = trivium("run", f"{file}:untraceable", "--explain")
    assert refused.code == 1
    assert "greeting.py:" in refused.err
    assert "cannot be traced" in refused.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{file}"], "write FILE.py:FUNCTION"),
        (["none.py:greet"], "there is no file none.py"),
        (["{file}:nobody"], "programs in it are greet, untraceable"),
        (["{file}:not_a_program"], "no program 'not_a_program'"),
        (["{file}:greet"], "missing a required argument: 'who'"),
        (["{file}:greet", "-a", "who=a", "-a", "who=b"], "gives 'who' twice"),
        (["{file}:greet", "-a", "who"], "NAME=VALUE"),
        (["{file}:greet", "-a", "who:=[1"], "is no JSON"),
        (["{file}:greet", "-a", "who=a", "-a", "else=b"], "parameters are who, times"),
        (["{file}:greet", "-a", "who=a", "--api-key", "k"], "--url"),
        (["{file}:greet", "-a", "who=a", "--url", "http://127.0.0.1:1", "--model", "x"], "leave --model"),
    ],
)
def test_what_is_called_wrongly_says_what_to_do(trivium: Run, file: Path, words: list[str], told: str) -> None:
    outcome = trivium("run", *(word.format(file=file) for word in words))
    assert outcome.code == 2
    assert told in outcome.err


def test_a_server_that_is_not_there_is_named(trivium: Run, file: Path) -> None:
    outcome = trivium("run", f"{file}:greet", "-a", "who=a", "--url", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert "http://127.0.0.1:1" in outcome.err
