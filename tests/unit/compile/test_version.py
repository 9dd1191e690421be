"""The compiler's version changes with every text that a plan depends on, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trivium.compile import version


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources, which `compiler_version` reads."""
    root = Path(version.__file__).resolve().parent.parent
    for name in ("compile", "ir", "models", "plan"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(version, "__file__", str(tmp_path / "compile" / "version.py"))
    return tmp_path


def fresh() -> str:
    version.compiler_version.cache_clear()
    try:
        return version.compiler_version()
    finally:
        version.compiler_version.cache_clear()


@pytest.mark.parametrize(
    "name", ["compile/pipeline.py", "compile/passes/fuse_add_norm.py", "ir/fused.py", "models/llama.py"]
)
def test_a_change_of_what_plans_are_made_by_is_another_version(package: Path, name: str) -> None:
    before = fresh()
    assert fresh() == before
    assert len(before) == 16
    path = package / name
    path.write_text(path.read_text() + "\n# another text\n")
    assert fresh() != before


@pytest.mark.parametrize("name", ["compile/tuner/search.py", "plan/explain.py"])
def test_what_only_looks_at_plans_does_not_count(package: Path, name: str) -> None:
    before = fresh()
    (package / name).write_text("")
    assert fresh() == before
