"""JSON Schemas that others wrote: the public test suite, and the tools of a function-calling benchmark.

Both are read out of packages of the Python index, fetched when a test first needs them and kept in the user's cache;
nothing of them is part of this repository. Without a network the tests that need them are skipped, but never in CI.
Sources: JSON-Schema-Test-Suite, in the source distribution of `jsonschema` (MIT); BFCL v4, in `bfcl-eval` (Apache-2.0).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


class Package(NamedTuple):
    """A file of the Python index."""

    requirement: str
    file: str
    sha256: str
    flags: tuple[str, ...]


SUITE = Package(
    "jsonschema==4.26.0",
    "jsonschema-4.26.0.tar.gz",
    "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    ("--no-binary", "jsonschema"),
)
TOOLS = Package(
    "bfcl-eval==2026.3.23",
    "bfcl_eval-2026.3.23-py3-none-any.whl",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
    ("--only-binary", ":all:"),
)


class Case(NamedTuple):
    """A document, and whether it satisfies the schema that it comes with."""

    text: str
    is_valid: bool


class Group(NamedTuple):
    """A schema of the suite."""

    draft: str
    file: str
    about: str
    schema: Any
    cases: tuple[Case, ...]


@cache
def groups() -> tuple[Group, ...]:
    """Every schema of the suite, by draft, with `$schema` where it has none."""
    found = []
    with tarfile.open(_fetched(SUITE)) as archive:
        for member in archive:
            draft, _, file = member.name.partition("/json/tests/")[2].partition("/")
            content = archive.extractfile(member) if draft in DRAFTS and file.endswith(".json") else None
            for each in json.load(content) if content else ():
                schema = each["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": DRAFTS[draft], **schema}
                tests = tuple(Case(compact(test["data"]), test["valid"]) for test in each["tests"])
                found.append(Group(draft, file, each["description"], schema, tests))
    return tuple(sorted(found, key=lambda group: (group.draft, group.file)))


@cache
def tool_schemas() -> tuple[dict[str, Any], ...]:
    """The parameters of the benchmark's functions as JSON Schemas, each once, in order of appearance."""
    found: dict[str, None] = {}
    with zipfile.ZipFile(_fetched(TOOLS)) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("bfcl_eval/data/") and name.endswith(".json"):
                for line in archive.read(name).decode().splitlines():
                    for parameters in _parameters(name, line):
                        found.setdefault(json.dumps(_as_json_schema(parameters), ensure_ascii=False))
    return tuple(json.loads(text) for text in found)


def compact(document: Any) -> str:
    """Write a document as an answer would: without spaces."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _parameters(name: str, line: str) -> Iterator[Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return
    if "multi_turn_func_doc" in name:
        yield entry["parameters"]
    functions = entry.get("function") if isinstance(entry, dict) else None
    if isinstance(functions, list):
        yield from (function["parameters"] for function in functions if isinstance(function, dict))


_TYPES = {
    "dict": "object", "HashMap": "object", "float": "number", "double": "number", "long": "integer", "tuple": "array",
    "Array": "array", "ArrayList": "array", "String": "string", "char": "string", "Boolean": "boolean",
}  # fmt: skip
"""What the benchmark writes for types, of several languages, in JSON Schema's words; `any` is none."""


def _as_json_schema(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    result = {}
    for key, value in node.items():
        if key == "type" and isinstance(value, str):
            if value not in {"any", ""}:
                result[key] = _TYPES.get(value, value)
        elif key == "properties" and isinstance(value, dict):
            result[key] = {name: _as_json_schema(inner) for name, inner in value.items()}
        elif key != "optional":
            result[key] = _as_json_schema(value) if key in {"items", "additionalProperties"} else value
    return result


def _fetched(package: Package) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trivium" / "tests"
    target = folder / package.file
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", own)
            done = subprocess.run(  # noqa: S603
                [*command, *package.flags, package.requirement], capture_output=True, text=True, check=False
            )
            if done.returncode and not os.environ.get("CI"):
                pytest.skip(f"{package.requirement} cannot be fetched: {done.stderr.strip()[-200:]}")
            assert done.returncode == 0, done.stderr
            (Path(own) / package.file).replace(target)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    assert found == package.sha256, f"{target} is not the file that was expected"
    return target
