"""`trivium bench` end to end on the tiny model: what it says was asked, answered, cached, paid for, and what failed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.broken_server import broken_server
from support.command_line import Run
from support.server_process import ServerProcess, free_port
from support.tiny_engine import tiny_model
from trivium.kernels import native

SHORT = ("--num-requests", "4", "--prompt-len", "6", "--output-len", "5")
LONG = ("--num-requests", "4", "--prompt-len", "6", "--output-len", "200")
"""Answers that last until all requests have come."""
SEEDS = itertools.count(1, 100_000)
"""Every measurement has prompts of its own, since all of them share a server and its cache."""
SPREADS = ("ttft_cold", "ttft_cached", "tpot", "itl", "e2e")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ("--kv-cache-memory", "1MiB", "--threads", "1", "--api-key", "tests=secret-key")
    with ServerProcess(tiny_model(), *flags) as running:
        yield running


def bench(trivium: Run, server: ServerProcess, *words: object, sizes: tuple[str, ...] = SHORT) -> list[dict[str, Any]]:
    """Measure the server and return the figures of each level."""
    url = ("--url", server.url, "--bench-api-key", "secret-key")
    outcome = trivium("bench", "serve", *url, *sizes, "--workload-seed", next(SEEDS), "--json", *words)
    assert outcome.code == 0, outcome.err
    return list(json.loads(outcome.out))


def test_offline_counts_what_it_ran(trivium: Run) -> None:
    outcome = trivium("bench", "offline", tiny_model(), *SHORT, "--json", "--kv-cache-memory", "1MiB", "--threads", "1")

    figures = json.loads(outcome.out)
    assert outcome.code == 0
    assert (figures["num_requests"], figures["output_tokens"]) == (4, 20)
    assert figures["prompt_tokens"] > 4 * 6
    assert figures["output_tokens_per_s"] == pytest.approx(20 / figures["seconds"])
    assert figures["engine"]["executor"] == ("native" if native.load() is not None else "reference")
    assert figures["load_seconds"] > 0
    assert "load_seconds" not in figures["engine"]


def test_offline_takes_every_workload(trivium: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "once"}\n{"messages": [{"role": "user", "content": "hi"}]}\n')
    engine = ("--kv-cache-memory", "1MiB", "--threads", "1", "--json")

    def figures(*words: object) -> dict[str, Any]:
        outcome = trivium("bench", "offline", tiny_model(), *SHORT, *engine, *words)
        assert outcome.code == 0, outcome.err
        return dict(json.loads(outcome.out))

    assert figures("--workload", "multi-turn", "--turns", "2")["num_requests"] == 8
    assert figures("--workload", "file", "--prompts-file", file)["num_requests"] == 4
    shared = figures("--workload", "shared-prefix", "--prefix-len", "10", "--max-num-seqs", "1")
    assert shared["cached_tokens"] > shared["prompt_tokens"] / 3


def test_a_sweep_has_a_run_per_concurrency_and_a_file_with_all_of_it(
    trivium: Run, server: ServerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.json"

    runs = bench(trivium, server, "--sweep", "1,2", "--json-file", file, "--price", "3.6")

    written = json.loads(file.read_text())
    assert written["runs"] == runs
    assert [run["concurrency"] for run in runs] == [1, 2]
    assert (written["workload"]["output_len"], written["load"]["sweep"]) == (5, [1, 2])
    assert "secret-key" not in file.read_text()
    for run in runs:
        assert (run["num_requests"], run["num_failed"], run["output_tokens"]) == (4, 0, 20)
        assert run["requests_per_s"] == pytest.approx(4 / run["seconds"])
        assert run["ttft_cold"]["count"] == 4
        total = run["prompt_tokens"] + 20
        assert run["cost_per_million_tokens"] == pytest.approx(0.001 * run["seconds"] / total * 1e6)
        for name in SPREADS:
            if (spread := run[name]) is not None:
                assert 0 < spread["p50_ms"] <= spread["p90_ms"] <= spread["p99_ms"]
                assert spread["range_ms"] <= spread["p99_ms"]


def test_a_shared_prefix_is_cold_once_and_then_cached(trivium: Run, server: ServerProcess) -> None:
    [run] = bench(trivium, server, "--workload", "shared-prefix", "--prefix-len", "30", "--concurrency", "1")

    assert run["ttft_cold"]["count"] == 1
    assert run["ttft_cached"]["count"] == 3
    assert run["cached_tokens"] > run["prompt_tokens"] / 2


def test_turns_find_their_conversation_in_the_cache(trivium: Run, server: ServerProcess) -> None:
    [run] = bench(trivium, server, "--workload", "multi-turn", "--turns", "3", "--concurrency", "2")

    assert (run["num_requests"], run["output_tokens"]) == (12, 60)
    assert run["ttft_cached"]["count"] >= 8


def test_prompts_come_from_a_file(trivium: Run, server: ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("once upon a time\nthe end\n")

    [run] = bench(trivium, server, "--workload", "file", "--prompts-file", file)

    assert run["prompt_tokens"] == 2 * (len("once upon a time") + len("the end"))


def test_arrivals_at_a_rate_do_not_wait_for_each_other(trivium: Run, server: ServerProcess) -> None:
    [run] = bench(trivium, server, "--rate", "10000", sizes=LONG)

    assert (run["rate"], run["num_requests"]) == (10000, 4)
    assert run["concurrency"] == 4


def test_people_get_a_table(trivium: Run, server: ServerProcess) -> None:
    url = ("--url", f"{server.url}/v1/", "--bench-api-key", "secret-key")
    outcome = trivium("bench", "serve", *url, *SHORT, "--workload-seed", next(SEEDS), "--sweep", "1,2", "--price", "1")

    assert outcome.code == 0
    for part in (
        "concurrency 1",
        "concurrency 2",
        "output tokens/s",
        "first token, cold",
        "max - min",
        "cost per million",
    ):
        assert part in outcome.out


def test_a_wrong_key_and_an_absent_server_are_errors(trivium: Run, server: ServerProcess) -> None:
    refused = trivium("bench", "serve", "--url", server.url, *SHORT)
    absent = trivium("bench", "serve", "--url", f"http://127.0.0.1:{free_port()}", *SHORT)

    assert (refused.code, absent.code) == (1, 1)
    assert "HTTP 401" in refused.err
    assert "does not list a model" in absent.err


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b'{"error": {"message": "out of order"}}', 500, "HTTP 500"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', 200, "without a finish_reason"),
        (b"data: {]\n\n", 200, "no JSON object"),
        (b'data: {"error": {"message": "out of order"}}\n\ndata: [DONE]\n\n', 200, "out of order"),
        (b'{"choices": []}', 200, "without a finish_reason"),
    ],
)
def test_requests_that_fail_are_counted_and_the_first_is_shown(
    trivium: Run, answer: bytes, status: int, said: str
) -> None:
    with broken_server(answer, status=status) as url:
        outcome = trivium("bench", "serve", "--url", url, *SHORT, "--json")

    [run] = json.loads(outcome.out)
    assert outcome.code == 1
    assert (run["num_failed"], run["output_tokens"], run["ttft_cold"]) == (4, 0, None)
    assert "4 of 4 requests failed" in outcome.err
    assert said in outcome.err


def test_events_without_a_space_or_a_done_are_understood(trivium: Run) -> None:
    first, last = b'{"choices":[{"text":"a"}]}', b'{"choices":[{"text":"b","finish_reason":"stop"}]}'
    with broken_server(b"data:%b\n\ndata:%b\n\n" % (first, last)) as url:
        outcome = trivium("bench", "serve", "--url", url, *SHORT, "--json")

    [run] = json.loads(outcome.out)
    assert (outcome.code, run["output_tokens"], run["itl"]["count"]) == (0, 8, 4)


@pytest.mark.parametrize("models", [{}, {"data": []}, {"data": None}, []])
def test_a_server_without_models_is_an_error(trivium: Run, models: object) -> None:
    with broken_server(b"", models=models) as url:
        outcome = trivium("bench", "serve", "--url", url, *SHORT)

    assert outcome.code == 1
    assert "does not list a model" in outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sweep", "1,2", "--rate", "5"), "give one"),
        (("--concurrency", "2", "--sweep", "1,2"), "give one"),
        (("--workload", "file"), "belong together"),
        (("--json-file", "/no/such/folder/x.json"), "folder must exist"),
        (("--plot-file", "/no/such/folder/x.svg"), "folder must exist"),
        (("--plot-file", "x.doc"), "must end in .svg"),
        (("--sweep", "0"), "sweep"),
        (("--workload", "huge"), "workload"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_sent(
    trivium: Run, words: tuple[str, ...], said: str
) -> None:
    outcome = trivium("bench", "serve", "--url", f"http://127.0.0.1:{free_port()}", *SHORT, *words)

    assert outcome.code == 2
    assert said in outcome.err


def test_a_plot_without_its_library_is_refused_before_anything_is_sent(
    trivium: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = trivium("bench", "serve", "--plot-file", "x.svg", "--url", f"http://127.0.0.1:{free_port()}")

    assert outcome.code == 2
    assert "trivium[bench]" in outcome.err


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_sweep_is_drawn(trivium: Run, server: ServerProcess, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"sweep.{kind}"

    bench(trivium, server, "--sweep", "1,2", "--plot-file", file)

    content = file.read_bytes()
    if kind == "svg":
        assert b"</svg>" in content
    else:
        assert content.startswith(b"\x89PNG")
    assert len(content) > 5000


@pytest.mark.extras
def test_a_single_run_without_any_answer_is_drawn_too(trivium: Run, tmp_path: Path) -> None:
    file = tmp_path / "empty.svg"
    with broken_server(b"", status=500) as url:
        outcome = trivium("bench", "serve", "--url", url, *SHORT, "--plot-file", file)

    assert outcome.code == 1
    assert b"</svg>" in file.read_bytes()
