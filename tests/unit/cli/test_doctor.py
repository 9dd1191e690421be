"""The doctor: what each check says of a healthy and of an ailing machine, and the exit code."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Outcome, Run
from trivium.cli import checks
from trivium.cli.checks import CHECKS, Finding, Situation
from trivium.config.options import ModelOptions, ServerOptions
from trivium.weights.catalog import CATALOG
from trivium.weights.store import model_file


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
    assert "options" in outcome.out


def test_a_taken_port_is_found(trivium: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        found = checks.port(situation(port=number))
        assert (found.state, str(number) in found.detail) == ("fail", True)
        assert "--port" in found.remedy
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


def findings(outcome: Outcome) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(outcome.out)}


def test_an_unknown_variable_is_a_warning(trivium: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_PORRT", "1")
    found = findings(trivium("doctor", "--offline", "--port", "0", "--json"))["options"]
    assert found["state"] == "warn"
    assert "TRIVIUM_PORRT; did you mean TRIVIUM_PORT?" in found["detail"]


def test_every_bad_setting_is_a_finding_and_the_good_ones_count(
    trivium: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIVIUM_PORT", "http")
    monkeypatch.setenv("TRIVIUM_THREADS", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "perhaps")
    monkeypatch.setenv("TRIVIUM_API_KEY", "tests=short")
    monkeypatch.setenv("TRIVIUM_MODEL", "gemma3-270m")
    outcome = trivium("doctor", "--offline", "--config", tmp_path / "none.yaml", "--json")
    found = findings(outcome)
    assert outcome.code == 1
    assert found["options"]["state"] == "fail"
    for part in ("TRIVIUM_PORT", "TRIVIUM_THREADS", "HF_HUB_OFFLINE", "none.yaml", "API key 'tests' has fewer"):
        assert part in found["options"]["detail"]
    assert "short" not in outcome.out
    assert "gemma3-270m" in found["model"]["detail"]


def test_a_bad_flag_and_a_contradiction_are_findings_too(
    trivium: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("")
    monkeypatch.setenv("TRIVIUM_SSL_CERTFILE", str(file))
    found = findings(trivium("doctor", "--offline", "--port", "zz", "--json"))["options"]
    assert "port is 'zz' (from --port)" in found["detail"]
    assert "belong together" in found["detail"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a directory in which nobody can create anything")
def test_a_cache_that_cannot_be_created_is_a_failure_even_for_root(trivium: Run) -> None:
    outcome = trivium("doctor", "--offline", "--port", "0", "--cache-dir", "/proc/trivium/cache")
    assert outcome.code == 1
    assert "cannot be written" in outcome.out
    assert "cache: choose another with --cache-dir" in outcome.out


def test_a_cached_model_is_read_and_compared_with_its_checksum(
    trivium: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = b"weights"
    small = replace(CATALOG["smollm2"], num_bytes=len(whole), sha256=hashlib.sha256(whole).hexdigest())
    monkeypatch.setitem(CATALOG, "smollm2", small)  # type: ignore[arg-type]
    path = model_file(tmp_path / "cache", small)
    path.parent.mkdir(parents=True)
    path.write_bytes(whole)
    assert findings(trivium("doctor", "--offline", "--port", "0", "--json"))["model"]["state"] == "ok"
    path.write_bytes(b"weighty")
    found = findings(trivium("doctor", "--offline", "--port", "0", "--json"))["model"]
    assert (found["state"], found["remedy"]) == ("fail", "trivium rm smollm2 && trivium pull smollm2")


@pytest.mark.parametrize(("text", "quota"), [("max 100000", None), ("150000 100000", 1.5)])
def test_the_cgroups_share_of_time_is_read(tmp_path: Path, text: str, quota: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert checks._cpu_quota(tmp_path) == quota
    assert checks._cpu_quota(tmp_path / "nothing") is None
