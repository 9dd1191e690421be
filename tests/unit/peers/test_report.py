"""The tables say what was measured, and name every point at which a peer is faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.report import plot, to_markdown
from support.peer_records import record

RECORDS = [
    record("llama-cpp", "Q4_0", 50.0, others_cpu_share=0.05, stream_gb_per_s=30.0, when="2026-11-30T10:00"),
    record("llama-cpp", "Q4_0", 70.0, others_cpu_share=0.05, stream_gb_per_s=50.0, when="2026-11-30T10:09"),
    record("llama-cpp", "Q8_0", 40.0),
    record("trivium", "Q4_1", 180.0, figures={"decode_tokens_per_s": 200.0}),
    record("trivium", "Q4_1", 500.0, others_cpu_share=0.9),
    record("trivium", "int8", 100.0),
    record("trivium", "Q4_1", 10.0, point="HTTP 16", suite="online"),
    record("openvino", "int8", 20.0, point="HTTP 16", suite="online"),
    record("vllm", "bf16", None, point="HTTP 16", suite="online", error="no token\nlong log"),
]


def part(text: str, heading: str) -> list[str]:
    return text.split(f"### {heading}\n\n", 1)[1].split("\n\n", 1)[0].strip().splitlines()


def test_the_first_table_compares_the_best_of_each_with_ratios() -> None:
    rows = part(to_markdown(RECORDS, 0.15), "Best variant of each engine")
    assert rows[0] == ("| point | unit | trivium | llama-cpp | openvino | trivium / llama-cpp | trivium / openvino |")
    assert rows[2] == (
        "| batch 16 | output tokens/s | **180.0** (180.0..180.0) Q4_1 | **60.0** (50.0..70.0) Q4_0 | - | **3.00** | - |"
    )
    assert rows[3].endswith("| **10.0** (10.0..10.0) Q4_1 | - | **20.0** (20.0..20.0) int8 | - | **0.50** |")
    assert len(rows) == 4


def test_decoding_alone_is_compared_where_it_was_told() -> None:
    told = [*RECORDS, record("llama-cpp", "Q8_0", 40.0, figures={"decode_tokens_per_s": 80.0})]
    rows = part(to_markdown(told, 0.15), "Decode alone, prefill left out")
    assert rows[0] == "| point | unit | trivium | llama-cpp | trivium / llama-cpp |"
    assert rows[2:] == ["| batch 16 | output tokens/s | **200.0** Q4_1 | **80.0** Q8_0 | **2.50** |"]


def test_equal_precision_has_a_table_of_its_own() -> None:
    rows = part(to_markdown(RECORDS, 0.15), "At equal precision of the weights")
    assert [row.split(" | ")[1] for row in rows[2:]] == ["4 bits", "8 bits"]
    assert rows[2].endswith("| **3.00** | - |")
    assert "**2.50**" in rows[3]


def test_every_point_at_which_a_peer_is_faster_is_listed() -> None:
    rows = part(to_markdown(RECORDS, 0.15), "Where a peer is faster")
    assert len(rows) == 3
    assert rows[2].startswith("| HTTP 16 | openvino |")
    assert rows[2].endswith("| 0.50 |")
    ahead = [one for one in RECORDS if one.point == "batch 16"]
    assert part(to_markdown(ahead, 0.15), "Where a peer is faster") == ["Nowhere, at the best variant of each."]


def test_all_variants_discarded_runs_and_failures_are_told() -> None:
    text = to_markdown(RECORDS, 0.15)
    rows = part(text, "Every variant")
    assert any("| trivium | Q4_1 | **180.0** (180.0..180.0) | 1 (1) | 200.0 |" in row for row in rows)
    assert part(text, "Failed runs") == ["- HTTP 16, vllm bf16, round 0: no token"]
    assert "memory read at 30.0 to 50.0 GB/s" in text
    assert "taken 2026-11-30T10:00 to 2026-11-30T10:09" in text


def test_peers_alone_make_a_report_too() -> None:
    text = to_markdown([one for one in RECORDS if one.engine == "llama-cpp"], 0.15)
    assert part(text, "Where a peer is faster") == ["trivium was not measured."]
    assert part(text, "Best variant of each engine")[0] == "| point | unit | llama-cpp |"


def test_each_model_has_a_part() -> None:
    text = to_markdown([*RECORDS, record("llama-cpp", "Q4_0", 5.0, model="other")], 0.15)
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## tiny", "## other"]


def test_a_plot_of_nothing_is_an_error() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="no run counts"):
        plot([record("a", "Q4_0", None)], 0.15, Path("unused.svg"))


@pytest.mark.extras
def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(RECORDS, 0.15, tmp_path / "peers.svg")
    drawn = (tmp_path / "peers.svg").read_text()
    assert "<svg" in drawn
