"""The doctor: what each check says of a healthy and of an ailing machine, and the exit code."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from trivium.cli import checks
from trivium.cli.checks import CHECKS, Finding, Situation
from trivium.config.options import ModelOptions, ServerOptions


def situation(**fields: Any) -> Situation:
    server = {name: fields.pop(name) for name in ("port", "host") if name in fields}
    return Situation(ModelOptions(**{"offline": True, **fields}), ServerOptions(**{"port": 0, **server}))


def test_the_report_has_a_line_for_every_check(trivium: Run) -> None:
    outcome = trivium("doctor", "--offline", "--port", "0", "--json")
    findings = json.loads(outcome.out)
    assert [finding["check"] for finding in findings] == list(CHECKS)
    assert outcome.code == (1 if any(finding["state"] == "fail" for finding in findings) else 0)


def test_a_failed_check_sets_the_exit_code_and_prints_the_remedy(trivium: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    outcome = trivium("doctor", "--offline", "--port", "0", "--cache-dir", file)
    assert outcome.code == 1
    assert "cache: choose another with --cache-dir" in outcome.out


def test_a_check_that_breaks_is_a_finding_and_the_rest_goes_on(trivium: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Situation) -> Finding:
        raise OSError("no such thing")

    monkeypatch.setitem(CHECKS, "cores", broken)
    outcome = trivium("doctor", "--offline", "--port", "0")
    assert outcome.code == 1
    assert "OSError: no such thing" in outcome.out
    assert "variables" in outcome.out


def test_a_taken_port_is_found(trivium: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        found = checks.port(situation(port=number))
        assert (found.state, str(number) in found.detail) == ("warn", True)
        served = trivium("serve", "--port", number)
    assert served.code == 1
    assert str(number) in served.err


def test_an_old_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    assert checks.python(situation()).state == "fail"


def test_a_missing_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        checks.importlib.metadata, "requires", lambda _: ["numpy>=2", "no-such-thing>=1", "x; extra == 'y'"]
    )
    found = checks.packages(situation())
    assert found == Finding("fail", "missing: no-such-thing", "pip install no-such-thing")


def test_a_missing_compiler_is_only_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.compiler(situation()).state == "warn"


def test_an_unknown_variable_is_a_warning_and_a_bad_one_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_NONSENSE", "1")
    assert checks.variables(situation()).state == "warn"
    monkeypatch.setenv("TRIVIUM_PORT", "http")
    found = checks.variables(situation())
    assert (found.state, "TRIVIUM_PORT" in found.detail) == ("fail", True)


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5)])
def test_the_cgroups_share_of_time_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert checks._cpu_quota(tmp_path) == quota
    assert checks._cpu_quota(tmp_path / "nothing") is None
