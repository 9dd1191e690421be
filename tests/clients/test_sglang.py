"""SGLang's own client against our server; needs an interpreter that has it, see `sglang_programs.py`.

It is no extra of ours, since it wants all that its server wants; `SGLANG_PYTHON` names the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.spoken import Spoken

PROGRAMS = Path(__file__).with_name("sglang_programs.py")
FAULTS = {"select, greedy": "TypeError", "select, unconditional": "IndexError"}
"""Programs in which the client (0.5.23) stumbles over an answer in its own server's shape, with what it raises."""
INTERPRETER = os.environ.get("SGLANG_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETER is None, reason="SGLANG_PYTHON names no interpreter that has sglang")
def test_its_programs_run_on_our_server(smollm2: Spoken) -> None:
    command = [str(INTERPRETER), str(PROGRAMS), smollm2.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603  (named by us)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert {name for name, outcome in outcomes.items() if outcome == "passes"} == set(outcomes) - set(FAULTS), outcomes
    for name, kind in FAULTS.items():
        assert kind in outcomes[name]
