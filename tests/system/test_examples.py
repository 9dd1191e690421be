"""Every program in examples/ and examples/programs/ runs, on the tiny model, and is shown in the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.server_process import ServerProcess
from support.tiny_engine import tiny_model
from support.tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
EXAMPLES = {
    str(path.relative_to(FOLDER).with_suffix("")): path
    for path in (*sorted(FOLDER.glob("*.py")), *sorted((FOLDER / "programs").glob("*.py")))
}
MOST_LINES = 60
SAID = {
    "score_prompts": r"(?s)\d\.\d  abc  \(least expected: .*\d\.\d  hello  .*a  \(a single token has no score\)",
    "classify": r"(?s)Good\.  \(of \d+ tokens, 0, \d{2,} were.*  Bad\.  \(of \d+ tokens, \d{2,}, \d{2,} were",
    "fan_out": r"(?m)(^[1-3]:.*$\s*){3}",
    "call_tools": r"(?m)^clock\((Oslo|Lima)\)$",
    "same_seed": r"(?s)(: the same bits.*){4}",
    "lora": r"(?s)base: '.*drawn-0: '.*drawn-1: '",
    "terminal_chat": r"(?s)> .*\n> .*\n> $",
    "programs/few_shot": r"(?s)(of \d{3} tokens cached\).*){3}",
    "programs/choose_ending": r"^A woman .* She: (eats|washes|flies|is) .*\.\nThe cook .* and: (puts|marr|reads|drive)",
    "programs/react_agent": r"(?s)^Question: Who\?\nThought 1:.*\nAction 1:.*(Observation 5: (Emma|Jane)|\d:\s*Finish)",
    "programs/generative_agents": r"(?s)poignancy +Klaus .*thing +Maria ",
    "programs/tree_of_thought": r"^16 answers, most often: ",
    "programs/skeleton_of_thought": r"(?s)^Give 5 short tips about tea, .*Tip 5:",
    "programs/judge": r"(?s)^clarity: .*relevance: .*grade: (10|[1-9])\n$",
    "programs/json_records": r'(?s)^\{"name": "[A-Z].*, "is_alive": (true|false)\}\nFacts\(country=',
    "programs/multi_turn_chat": r"(?s)(\(last prompt: \d{2,} of \d{2,} tokens cached\).*){3}",
    "programs/rag": r"(?s)^Why\?",
}
ARGUMENTS = {
    "classify": ("Good.", "Bad."),
    "fan_out": ("--answers", "3"),
    "terminal_chat": ("--max-tokens", "8"),
    "programs/react_agent": ("--question", "Who?"),
    "programs/skeleton_of_thought": ("tea",),
    "programs/rag": ("Why?",),
}
STDIN = {"score_prompts": "abc\nhello\na\n", "terminal_chat": "hello\nhow are you\n\nnot read\n"}


def run(name: str, *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES[name]), *arguments]
    done = subprocess.run(  # noqa: S603  (our own examples)
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, of which each letter is a token, with room for the prompts of programs."""
    return write_tiny_model(tmp_path_factory.mktemp("roomy") / "tiny", max_positions=8192)


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name: str, roomy: Path) -> None:
    model = roomy if name.startswith("programs/") else tiny_model()
    out = run(name, "--model", str(model), *ARGUMENTS.get(name, ()), stdin=STDIN.get(name, ""))

    assert re.search(SAID[name], out), out
    assert "DIFFERENT" not in out


def test_the_client_shows_an_answer_and_its_cost() -> None:
    flags = ("--served-model-name", "tiny", "--kv-cache-memory", "1MiB", "--threads", "1")
    with ServerProcess(tiny_model(), *flags) as server:
        out = run("chat_client", "--url", f"{server.url}/v1", "--model", "tiny", "--max-tokens", "12", "hello")

    assert re.search(r"\(\d+ tokens in, 0 of them cached; \d+ out\)\n$", out)


def test_every_example_is_run_shown_and_short() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()

    assert set(EXAMPLES) == {*SAID, "chat_client"}
    for name, path in EXAMPLES.items():
        assert f"../examples/{name}.py" in page
        assert len(path.read_text().splitlines()) < MOST_LINES


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_explains_itself(name: str) -> None:
    assert f"python examples/{name}.py" in run(name, "--help")
