"""What object files of kernels hold: nothing the linker may mix up, no instruction above the level, no spilled tile."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ISAS = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "amx")
# What the code of a level must not hold: registers and instructions of the levels above it. Where AVX-512 is not
# allowed, neither are its registers 16 to 31, its masks, nor its memory operands that repeat one number.
ABOVE_AVX2 = re.compile(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b|\{1to\d+\}")
BYTE_DOTS = re.compile(r"\bvpdp(busd|wssd)|\bvdpbf16ps|\bvcvtne2?ps2bf16")
BEYOND = {
    "scalar": re.compile(r"%[yz]mm|^v[a-z]"),
    "avx2": re.compile(f"{ABOVE_AVX2.pattern}|{BYTE_DOTS.pattern}"),
    "avxvnni": ABOVE_AVX2,
    "avx512": BYTE_DOTS,
    "avx512vnni": re.compile(r"%tmm|\bt(dp|ileload)|\bv(add|mul|fmadd\d+)ph\b"),
    "amx": re.compile(r"\bv(add|mul|fmadd\d+)ph\b"),
}
# The share of a register tile's instructions that may move vectors to or from the stack inside its loops. Sixteen
# registers do not hold a tile, its weights and its constants at once; thirty-two do.
SPILLS = {"avx2": 0.12, "avxvnni": 0.10, "avx512": 0.08, "avx512vnni": 0.02}
TILE = re.compile(r"run_(int|float)_tile<")
STACK_VECTOR = re.compile(r"%[xyz]mm\d+.*\(%r[sb]p\)|\(%r[sb]p\).*%[xyz]mm\d+")

ISA_OBJECT = re.compile(r"trivium_\w+_(scalar|avx2|avxvnni|avx512|avx512vnni|amx)\.dir")

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


needs_disassembly = pytest.mark.skipif(
    shutil.which("objdump") is None
    or platform.machine() not in ("x86_64", "AMD64")
    or not any((ROOT / "build").glob("*/CMakeFiles")),
    reason="needs objdump and a native build for x86-64",
)


def isa_of(path: Path) -> str:
    """Level of an object file of ISA sources, or of such a source."""
    return path.name.split(".")[0].rsplit("_", 1)[-1]


@dataclass(frozen=True)
class Code:
    """A function's instructions: (address, mnemonic, operands)."""

    name: str
    instructions: list[tuple[int, str, str]]

    def loops(self) -> list[tuple[int, int]]:
        """Spans of addresses that a jump backwards closes."""
        jumps = [(at, re.match(r"[0-9a-f]+", to)) for at, what, to in self.instructions if what.startswith("j")]
        return [(int(to[0], 16), at) for at, to in jumps if to is not None and int(to[0], 16) <= at]

    def looped_stack_vectors(self) -> int:
        """Instructions inside loops that move a vector to or from the stack."""
        loops = self.loops()
        return sum(
            STACK_VECTOR.search(operands) is not None and any(begin <= at <= end for begin, end in loops)
            for at, _, operands in self.instructions
        )


def functions(path: Path) -> Iterator[Code]:
    """Every function of an object file, disassembled."""
    objdump = shutil.which("objdump")
    assert objdump is not None
    command = [objdump, "-d", "-C", "--no-show-raw-insn", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    for part in re.split(r"^[0-9a-f]+ <", done.stdout, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        found = (re.match(r"\s*([0-9a-f]+):\t(\S+)\s*([^#]*)", line) for line in lines[1:])
        yield Code(lines[0], [(int(line[1], 16), line[2], line[3]) for line in found if line is not None])


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
        assert len(exported) == 1
        assert f"_{isa_of(path)}(" in exported[0]


@needs_disassembly
def test_no_object_holds_an_instruction_above_its_level() -> None:
    for path in isa_objects():
        beyond = BEYOND[isa_of(path)]
        found = [
            f"{path.name}: {code.name[:80]} {what} {operands}"
            for code in functions(path)
            for _, what, operands in code.instructions
            if beyond.search(f"{what} {operands}")
        ]
        assert found[:5] == []


@needs_disassembly
@pytest.mark.parametrize("isa", SPILLS)
def test_register_tiles_stay_in_registers(isa: str) -> None:
    tiles = [
        code
        for path in isa_objects()
        if path.parent.name == "linear" and isa_of(path) == isa
        for code in functions(path)
        if TILE.search(code.name)
    ]
    if not tiles:
        pytest.skip(f"this build has no objects of {isa}")
    spilled = {
        code.name[:160]: f"{code.looped_stack_vectors()} of {len(code.instructions)}"
        for code in tiles
        if code.looped_stack_vectors() > SPILLS[isa] * len(code.instructions)
    }
    assert spilled == {}
    assert any("prefetch" in what for code in tiles for _, what, _ in code.instructions)


@pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("aarch64-linux-gnu-g++") is None,
    reason="needs cmake and a compiler for aarch64 (g++-aarch64-linux-gnu)",
)
def test_a_build_for_arm_takes_scalar_kernels_and_no_flag_of_x86(tmp_path: Path) -> None:
    toolchain = tmp_path / "aarch64.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        "set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)\n"
    )
    options = ["-DTRIVIUM_BUILD_PYTHON=OFF", "-DTRIVIUM_BUILD_TESTS=ON", "-DTRIVIUM_REQUIRE_NATIVE=ON"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "arm"), f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", *options]
    subprocess.run(configure, check=True, capture_output=True, timeout=120)  # noqa: S603
    commands = json.loads((tmp_path / "arm" / "compile_commands.json").read_text())
    assert [entry["file"] for entry in commands if re.search(r"\s-m|TRIVIUM_X86", entry["command"])] == []
    levels = {isa_of(Path(entry["file"])) for entry in commands if "/csrc/ops/" in entry["file"]} & set(ISAS)
    assert levels == {"scalar"}
    # One source of each kind compiles; the whole builds and passes its tests too, in a minute more.
    for name in ("groups_scalar.cpp", "operand.cpp", "isa.cpp", "parallel.cpp"):
        entry = next(entry for entry in commands if entry["file"].endswith(f"/{name}"))
        command = [*shlex.split(entry["command"]), "-fsyntax-only"]
        subprocess.run(command, cwd=entry["directory"], check=True, timeout=120)  # noqa: S603


def test_every_isa_file_is_listed_and_every_listed_kernel_has_its_file() -> None:
    for listing in (ROOT / "csrc" / "ops").glob("*/kernels.inc"):
        listed = set(re.findall(r"^TRIV_KERNEL\(Isa::\w+, (\w+)\)", listing.read_text(), re.MULTILINE))
        isas = {name.rsplit("_", 1)[1] for name in listed}
        files = {path.stem.rsplit("_", 1)[1] for path in listing.parent.glob("*_*.cpp")} & set(ISAS)
        assert isas == files
        assert listing.read_text().rstrip().splitlines()[-1].startswith("TRIV_KERNEL(Isa::kScalar")
