"""No function compiled for one instruction set can be taken by the linker for another file's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ISAS = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni")
ISA_OBJECT = re.compile(r"trivium_\w+_(scalar|avx2|avxvnni|avx512|avx512vnni)\.dir")

needs_objects = pytest.mark.skipif(
    shutil.which("nm") is None or not any((ROOT / "build").glob("*/CMakeFiles")), reason="needs nm and a native build"
)


def isa_objects() -> list[Path]:
    """Object files of ISA sources in every optimised build; sanitizers add weak symbols of their own."""
    return [
        path
        for path in (ROOT / "build").glob("*/CMakeFiles/*/csrc/ops/**/*.o")
        if ISA_OBJECT.search(path.as_posix()) and path.relative_to(ROOT).parts[1] not in ("asan", "tsan")
    ]


def symbols(path: Path) -> list[tuple[str, str]]:
    """Kind (nm's letter) and name of every symbol."""
    nm = shutil.which("nm")
    assert nm is not None
    done = subprocess.run([nm, "-C", str(path)], capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
    lines = (line[17:].split(" ", 1) for line in done.stdout.splitlines())
    return [(kind, name) for kind, name in lines]


@needs_objects
def test_objects_of_isa_files_hold_no_weak_symbol() -> None:
    objects = isa_objects()
    assert objects
    weak = {f"{path.name}: {name}" for path in objects for kind, name in symbols(path) if kind in "wWvVu"}
    assert weak == set()


@needs_objects
def test_objects_of_isa_files_export_their_kernel_and_nothing_else() -> None:
    for path in isa_objects():
        exported = [name for kind, name in symbols(path) if kind == "T"]
        isa = path.name.split(".")[0].rsplit("_", 1)[1]
        assert len(exported) == 1
        assert f"_{isa}(" in exported[0]


def test_every_isa_file_is_listed_and_every_listed_kernel_has_its_file() -> None:
    for listing in (ROOT / "csrc" / "ops").glob("*/kernels.inc"):
        listed = set(re.findall(r"^TRIV_KERNEL\(Isa::\w+, (\w+)\)", listing.read_text(), re.MULTILINE))
        isas = {name.rsplit("_", 1)[1] for name in listed}
        files = {path.stem.rsplit("_", 1)[1] for path in listing.parent.glob("*_*.cpp")} & set(ISAS)
        assert isas == files
        assert listing.read_text().rstrip().splitlines()[-1].startswith("TRIV_KERNEL(Isa::kScalar")
