"""The scripts that the Makefile relies on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        list(map(str, command)), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, **options
    )


def test_requirements_of_parts_are_printed_in_order() -> None:
    lines = run(sys.executable, "tools/requirements.py", "build", "core").stdout.splitlines()
    assert lines[0].startswith("scikit-build-core")
    assert any(line.startswith("numpy") for line in lines)


def test_an_unknown_part_is_an_error_that_names_it() -> None:
    done = run(sys.executable, "tools/requirements.py", "nonsense")
    assert done.returncode != 0
    assert "nonsense" in done.stderr


def test_a_virtual_environment_that_works_is_left_alone(tmp_path: Path) -> None:
    fake = tmp_path / "venv" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    assert run("sh", "tools/make_venv.sh", sys.executable, tmp_path / "venv").returncode == 0
    assert fake.read_text() == "#!/bin/sh\nexit 0\n"


def test_a_python_that_is_missing_or_too_old_is_refused_with_a_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1 && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = run("sh", "tools/make_venv.sh", old, tmp_path / "venv")
    assert done.returncode == 1
    assert "3.9.1" in done.stderr
    missing = run("sh", "tools/make_venv.sh", tmp_path / "nothing", tmp_path / "venv")
    assert missing.returncode == 1
    assert "make PYTHON=" in missing.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_the_commands_that_the_documents_name() -> None:
    listed = run("make", "--no-print-directory", "help").stdout
    for target in ("serve", "test", "test-oracle", "full", "lint", "types", "docs", "bench", "snapshots", "clean"):
        assert f"make {target} " in listed
