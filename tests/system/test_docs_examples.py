"""Every example in README and guides runs: Python blocks as programs, console blocks line by line.

A fence marked `python` or `console` is an example; unmarked fences are not run. Examples speak to port 8000, which
stands for the server that this module starts once, with SmolLM2.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server_process import ServerProcess, smollm2_or_skip

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> list[tuple[str, str]]:
    return FENCE.findall(page.read_text(encoding="utf-8"))


WITH_EXAMPLES = [page for page in PAGES if _blocks(page)]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(smollm2_or_skip(), "--executor", "auto") as running:
        yield running


def test_every_guide_has_an_example() -> None:
    without = {page.name for page in PAGES if page not in WITH_EXAMPLES}

    assert without == set()


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, server: ServerProcess, tmp_path: Path) -> None:
    blocks = _blocks(page)
    program = "\n\n".join(code for kind, code in blocks if kind == "python")
    if program:
        _run([sys.executable, "-W", "error", "-c", _local(program, server)], tmp_path)
    for kind, text in blocks:
        if kind == "console":
            for line in text.splitlines():
                if line.startswith("$ "):
                    _run(_command(_local(line[2:], server)), tmp_path)


def _local(text: str, server: ServerProcess) -> str:
    return text.replace("http://127.0.0.1:8000", server.url)


def _command(line: str) -> list[str]:
    words = shlex.split(line)
    return [sys.executable, "-m", "trivium", *words[1:]] if words[0] == "trivium" else words


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(  # noqa: S603  (our own examples)
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "COLUMNS": "100", "TRIVIUM_EXECUTOR": "auto"},  # what a reader runs
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
