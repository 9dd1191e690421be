"""Where peers, models made for them and results lie, and how long jobs there are run.

Layout::

    <work>/<peer>/venv                 the peer's own virtual environment
    <work>/<peer>/source, build        what is built from source
    <work>/<peer>/installed            written last: what was installed
    <work>/models/<model>/<form>       a model in a form that some peer reads: .gguf files, hf/, openvino-int8/
    <work>/logs/                       output of installations and servers
    <work>/results/                    JSON lines, one file a run
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_LINES = 25


class JobFailedError(Exception):
    """A command ended with an error; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class WorkDir:
    """A folder outside the repository."""

    root: Path

    def peer(self, name: str) -> Path:
        """Return a peer's folder."""
        return self.root / name

    def python(self, peer: str) -> Path:
        """Return the interpreter of a peer's virtual environment."""
        return self.peer(peer) / "venv" / "bin" / "python"

    def model(self, name: str) -> Path:
        """Return the folder of the forms of a model."""
        return self.root / "models" / name

    def log(self, name: str) -> Path:
        """Return a log file whose folder exists."""
        path = self.root / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def results(self) -> Path:
        """Return the folder of results, which exists."""
        path = self.root / "results"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def installed(self, peer: str) -> str | None:
        """Return what was installed, or `None` when it was not."""
        mark = self.peer(peer) / "installed"
        return mark.read_text().strip() if mark.is_file() else None

    def mark_installed(self, peer: str, version: str) -> None:
        """Note that an installation is whole."""
        (self.peer(peer) / "installed").write_text(version + "\n")

    def make_venv(self, peer: str, python: str) -> Path:
        """Make a peer's virtual environment where there is none that works; returns its interpreter."""
        own = self.python(peer)
        if not _has_pip(own):
            shutil.rmtree(self.peer(peer) / "venv", ignore_errors=True)
            self.run(peer, [python, "-m", "venv", self.peer(peer) / "venv"])
        return own

    def pip_install(self, peer: str, *requirements: str) -> None:
        """Install packages into a peer's virtual environment."""
        self.run(peer, [self.python(peer), "-m", "pip", "install", "--disable-pip-version-check", *requirements])

    def run(self, log: str, command: Sequence[str | Path], *, environ: Mapping[str, str] | None = None) -> None:
        """Run a command to its end with its output in a log.

        Raises:
            JobFailedError: It ended with an error.
        """
        words = list(map(str, command))
        say(" ".join(word if "\n" not in word else "(script)" for word in words))
        path = self.log(log)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n$ {' '.join(words)}\n")
            file.flush()
            began = file.tell()
            done = subprocess.run(  # noqa: S603
                words, stdout=file, stderr=subprocess.STDOUT, check=False, env={**os.environ, **(environ or {})}
            )
        if done.returncode:
            written = path.read_bytes()[began:].decode(errors="replace")
            raise JobFailedError(f"{words[0]} ended with {done.returncode}; {path} ends:\n{tail(written)}")


def _has_pip(python: Path) -> bool:
    if not python.exists():
        return False
    done = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0


def tail(text: str) -> str:
    """Return the last lines of a log."""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def say(text: str) -> None:
    """Tell how far it is, on standard error."""
    print(text, file=sys.stderr, flush=True)
