"""The program: commands, help, exit codes, errors in one line, and that starting it stays cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.command_line import Run
from trivium import __version__
from trivium.cli import models, program
from trivium.cli.program import COMMANDS


def test_help_lists_every_command_with_its_meaning(trivium: Run) -> None:
    top = trivium("--help")
    assert top.code == 0
    for command in COMMANDS:
        page = top if len(command.words) == 1 else trivium(command.words[0], "--help")
        assert command.words[-1] in page.out
        assert command.meaning in page.out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_every_command_has_a_help_page(trivium: Run, command: program.Command) -> None:
    page = trivium(*command.words, "--help")
    assert page.code == 0
    assert page.out.startswith(f"Usage: trivium {' '.join(command.words)}")


def test_the_version_is_the_packages(trivium: Run) -> None:
    assert trivium("--version").out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("servee",), 2, "serve"),
        (("serve", "--portt", "1"), 2, "Did you mean --port?"),
        (("serve", "--port"), 2, "--port requires an argument"),
        (("serve", "--port", "http"), 2, "port is 'http' (from --port)"),
        (("serve", "--port", "1", "--port", "2"), 2, "multiple times"),
        (("serve", "--config", "/nowhere.yaml"), 2, "/nowhere.yaml"),
        (("serve", "m", "--served-model-name", "a", "b"), 2, "or separate by commas: --served-model-name a,b. See"),
        (("generate", "m", "--stop", "x", "y"), 2, "repeat the flag: --stop x --stop y. See"),
        (("generate", "--stop", "x", "nowhere", "-p", "x"), 1, "repeat the flag: --stop x --stop nowhere"),
        (("serve", "m", "n"), 2, "unexpected: n. See --help."),
        (("chat", "--n", "2"), 2, "chat shows one answer as text and does not take --n"),
        (("chat", "--best-of", "2", "--logprobs", "1"), 2, "does not take --best-of, --logprobs"),
        (("chat", "--prompt-logprobs", "1", "--prompt-logprob-start", "1"), 2, "--prompt-logprob-start"),
        (("chat", "--url", "http://127.0.0.1:9", "--page-len", "4"), 2, "--page-len: for a model in this process"),
        (("chat", "--key", "k"), 2, "give its address with --url"),
        (("bench", "serve", "--url", "http://127.0.0.1:9/"), 1, "http://127.0.0.1:9/v1/models does not list a model"),
        (("rm", "org/name"), 1, "'org/name' is not in the hub's cache"),
        (("rm", "nothing"), 1, "'nothing' is not in the cache"),
        (("pull", "smollm3", "--offline"), 1, "did you mean 'smollm2'?"),
    ],
)
def test_failures_are_one_line_and_have_their_exit_code(
    trivium: Run, words: tuple[str, ...], code: int, message: str
) -> None:
    outcome = trivium(*words)
    assert outcome.code == code
    assert outcome.out == ""
    assert message in outcome.err
    assert outcome.err.startswith("trivium: ")
    assert outcome.err.count("\n") == 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with a bug in it, in place of `rm`."""

    def crash(name: str, /, *, log_level: str = "info") -> int:
        raise ZeroDivisionError(f"cannot divide {name}")

    monkeypatch.setattr(models, "remove", crash)


@pytest.mark.usefixtures("broken")
def test_a_bug_is_one_line_too_unless_debugging(trivium: Run) -> None:
    quiet = trivium("rm", "x")
    assert quiet.code == 1
    assert quiet.err == "trivium: internal error: ZeroDivisionError: cannot divide x; --log-level debug shows where\n"
    loud = trivium("rm", "x", "--log-level", "debug")
    assert loud.code == 1
    assert "Traceback" in loud.err


def test_an_interrupt_ends_with_130(trivium: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*, log_level: str = "info") -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "models", interrupted)
    assert trivium("models").code == 130


def test_a_misspelt_variable_is_warned_of(trivium: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_PORTS", "1")
    assert "warning: unknown variable TRIVIUM_PORTS; did you mean TRIVIUM_PORT?" in trivium("config", "show").err


HEAVY = ("numpy", "torch", "transformers", "tokenizers", "fastapi", "uvicorn", "httpx", "zmq", "yaml", "jinja2")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["serve", "--help"], ["config", "show"]])
def test_starting_imports_nothing_heavy(words: list[str]) -> None:
    script = (
        f"import sys; from trivium.cli import main; code = main({words!r}); "
        f"print('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)), code)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    assert done.stdout.splitlines()[-1] == "HEAVY [] 0"


def test_completion_scripts_can_be_made_for_every_shell() -> None:
    app = program.build_program()
    for shell in ("bash", "zsh", "fish"):
        script = app.generate_completion(shell=shell)
        assert "serve" in script
        assert "max-num-seqs" in script
