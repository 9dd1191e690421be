"""The repository's own laws: sizes, floors, what source code may not contain, how long a start takes."""

from __future__ import annotations

import ast
import importlib.util
import re
import resource
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "trivium").rglob("*.py"))
MAY_PRINT = {"cli", "bench"}
START_LIMIT_S = 0.3
BANNED_FILES = {"utils", "helpers", "common", "misc", "core", "manager"}
BANNED_CLASS = re.compile(r"(Manager|Handler|Helper|Util|Utils|Impl|Processor|Data|Info|Base)$")
# Split, so that this file does not name what it looks for.
REGISTRY_HOSTS = ["pypi" + ".org", "python" + "hosted.org", "debian" + ".org", "npm" + "js.org", "registry.npm"]


@cache
def tracked() -> list[Path]:
    """Every file that git knows; without git, every source and test."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    done = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def test_sizes_are_within_their_limits() -> None:
    spec = importlib.util.spec_from_file_location("check_sizes", ROOT / "tools" / "check_sizes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.check() == []


def test_imports_keep_to_their_floors() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    if not lint_imports.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run(  # noqa: S603
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_source_asserts_nothing_and_prints_only_on_the_command_line(path: Path) -> None:
    package = path.relative_to(ROOT / "src" / "trivium").parts[0]
    for node in nodes(path):
        assert not isinstance(node, ast.Assert), f"line {node.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec"), f"line {node.lineno}"
            assert node.func.id != "print" or package in MAY_PRINT, f"line {node.lineno}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "marshal", "shelve"} & set(names), f"line {node.lineno}"


def test_no_file_or_class_has_a_name_that_says_nothing() -> None:
    named = [path for path in SOURCES if path.stem in BANNED_FILES]
    assert named == []
    classes = {node.name for path in SOURCES for node in nodes(path) if isinstance(node, ast.ClassDef)}
    assert sorted(name for name in classes if BANNED_CLASS.search(name)) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_holds(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_no_tracked_file_names_a_registry_or_what_lies_outside_the_repository() -> None:
    found = []
    for path in tracked():
        if path.suffix in {".safetensors", ".npz", ".gguf", ".png"} or path == Path(__file__):
            continue
        text = path.read_text(errors="replace")
        found += [
            f"{path.relative_to(ROOT)}: {word}" for word in [*REGISTRY_HOSTS, "../shared", "/work/"] if word in text
        ]
    assert found == []


def start_cpu_s(*arguments: str) -> float:
    """Processor seconds of the fastest of three starts; wall time would tell about this machine's other work."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=30)  # noqa: S603
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_importing_trivium_takes_under_a_third_of_a_second() -> None:
    assert start_cpu_s("-c", "import trivium") < START_LIMIT_S


def test_help_takes_under_a_third_of_a_second() -> None:
    help_code = "from trivium.cli import main; import sys; sys.argv = ['trivium', '--help']; main()"
    assert start_cpu_s("-c", help_code) < START_LIMIT_S


def test_importing_trivium_imports_no_tensors() -> None:
    code = "import sys, trivium; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
    assert done.stdout.strip() == "set()"


def test_the_native_stub_is_what_the_module_has(tmp_path: Path) -> None:
    if importlib.util.find_spec("nanobind") is None or importlib.util.find_spec("trivium._C") is None:
        pytest.skip("needs nanobind and the native module")
    stub = tmp_path / "_C.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "trivium._C", "-o", str(stub)]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603
    assert stub.read_text() == (ROOT / "src" / "trivium" / "_C.pyi").read_text(), "run `make snapshots`"
