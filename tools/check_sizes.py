"""Fail when a file or function is larger than the limits, unless tools/sizes.toml says why it may be.

The exceptions are printed each time, so that the list stays short; one that is no longer needed fails too.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / "tools" / "sizes.toml"


def file_lines(patterns: list[str]) -> dict[str, int]:
    """Return lines per file that matches one of `patterns`."""
    paths = (path for pattern in patterns for path in ROOT.glob(pattern))
    return {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in paths}


def function_lines(pattern: str) -> dict[str, int]:
    """Return lines per function, docstring and decorators left out, as path:function."""
    found = {}
    for path in ROOT.glob(pattern):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                key = f"{path.relative_to(ROOT).as_posix()}:{node.name}"
                found[key] = max(found.get(key, 0), (node.end_lineno or 0) - first.lineno + 1)
    return found


def check() -> list[str]:
    """Return one line per violation."""
    table = tomllib.loads(LIMITS.read_text())
    allowed = dict(table["allowed"])
    faults = []
    for kind in table["limits"].values():
        is_function = kind["unit"] == "function"
        sizes = function_lines(kind["files"][0]) if is_function else file_lines(kind["files"])
        for name, lines in sorted(sizes.items()):
            if lines <= kind["lines"]:
                continue
            reason = allowed.pop(name, None)
            if reason is None:
                faults.append(
                    f"{name}: {lines} lines, more than {kind['lines']}; split it, or give a reason in {LIMITS.name}"
                )
            else:
                print(f"{name}: {lines} lines: {reason}")
    return faults + [f"{name}: its exception in {LIMITS.name} is no longer needed" for name in allowed]


if __name__ == "__main__":
    problems = check()
    print("\n".join(problems) or "sizes: all within limits")
    sys.exit(bool(problems))
