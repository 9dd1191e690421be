"""The command line: what it refuses before anything is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import record as records
from benchmarks.peers.__main__ import main, parser
from benchmarks.peers.workdir import JobFailedError, WorkDir
from support.peer_records import record


def test_peers_are_named_with_commas_or_spaces_and_points_by_their_whole_names() -> None:
    options = parser().parse_args(["run", "--peers", "trivium llama-cpp,vllm", "--points", "HTTP 16,batch 4"])
    assert options.peers == ["trivium", "llama-cpp", "vllm"]
    assert options.points == ["HTTP 16", "batch 4"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--peers", "gcc"], "there is no engine 'gcc'; engines: trivium, llama-cpp, llama-cpp-avx2, open"),
        (["run", "--peers", "vllm"], "vllm is not installed: python -m benchmarks.peers install vllm"),
        (["run", "--peers", "trivium", "--suite", "all"], "there is no suite 'all'"),
        (["run", "--peers", "trivium", "--model", "none"], "there is no model 'none'; models: smollm2, "),
        (["run", "--peers", "trivium", "--model", "none.gguf"], "there is no file"),
        (["run", "--peers", "trivium", "--trivium-args", "x=--colour red"], "'--colour' is not an option"),
        (["report", "missing.jsonl"], "missing.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_in_one_line(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--work-dir", str(tmp_path)]) == 1
    assert told in capsys.readouterr().err


def test_several_files_of_results_make_one_report(tmp_path: Path) -> None:
    for name, rate in (("a", 10.0), ("b", 30.0)):
        records.append(tmp_path / f"{name}.jsonl", record("llama-cpp", "Q4_0", rate))
    out = tmp_path / "report.md"
    assert main(["report", *map(str, sorted(tmp_path.glob("*.jsonl"))), "--markdown", str(out)]) == 0
    assert "**20.0** (10.0..30.0) Q4_0" in out.read_text()


def test_a_job_that_fails_tells_the_end_of_its_log(tmp_path: Path) -> None:
    work = WorkDir(tmp_path)
    work.run("peer", [sys.executable, "-c", "print('earlier')"])
    with pytest.raises(JobFailedError, match=r"ended with 3; .*peer\.log ends:\n.*broken") as error:
        work.run("peer", [sys.executable, "-c", "print('broken'); raise SystemExit(3)"])
    assert "earlier" not in str(error.value)
    assert "earlier" in work.log("peer").read_text()


def test_an_installation_counts_when_it_was_marked_whole(tmp_path: Path) -> None:
    work = WorkDir(tmp_path)
    assert work.installed("peer") is None
    work.peer("peer").mkdir()
    work.mark_installed("peer", "peer 1.2")
    assert work.installed("peer") == "peer 1.2"


def test_raw_lines_are_json_objects(tmp_path: Path) -> None:
    records.append(tmp_path / "lines.jsonl", record("a", "Q4_0", 10.0))
    assert json.loads((tmp_path / "lines.jsonl").read_text())["tokens_per_s"] == 10.0
