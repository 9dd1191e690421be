"""The page of the HTTP API says what the server's tables say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_reference_page_is_what_the_tables_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "http_reference.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    assert outcome.returncode == 0, outcome.stderr
