"""docs/reference/options.md is what the records of options say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trivium.bench.options import ReportOptions, ServeOptions, WorkloadOptions
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import options_of
from trivium.config.sampling import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "options.md"


def test_the_page_is_what_its_tool_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "options_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_every_option_has_its_row_with_flag_variable_default_and_meaning() -> None:
    page = PAGE.read_text()
    for record in (EngineOptions, ServerOptions, WorkloadOptions, ServeOptions, ReportOptions):
        for option in options_of(record):
            [row] = [
                line for line in page.splitlines() if f"`{option.flag}` | `{option.variable}` | `{option.name}`" in line
            ]
            assert row.count(" | ") == 5
            assert option.meaning
    for option in options_of(SamplingParams):
        assert f"| `{option.name}` | `{option.flag}` |" in page
