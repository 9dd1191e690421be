"""The reliability page: every test that it names exists, and every case has its row."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)
COUNTS = {"A": 19, "B": 14, "C": 6, "D": 6, "E": 4, "F": 5, "G": 5, "I": 6, "J": 4, "K": 1}


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_the_page_names_exists() -> None:
    assert len(NAMED) > 80
    missing = [
        f"{path}::{name}" for path, name in NAMED if not (ROOT / path).is_file() or name not in functions_of(path)
    ]
    assert missing == []


def test_every_case_has_one_row_with_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [A-K]\d\d \|", line)]
    cases = [line[2:5] for line in rows]
    expected = [f"{letter}{number:02}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    assert cases == expected
    assert all("::test_" in line for line in rows)


def test_every_test_of_the_cases_is_on_the_page() -> None:
    files = [*(ROOT / "tests/system/cases").glob("test_*.py"), *(ROOT / "tests/soak").glob("test_*.py")]
    written = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in functions_of(path.relative_to(ROOT).as_posix())
        if name.startswith("test_")
    }
    assert written - set(NAMED) == set()
