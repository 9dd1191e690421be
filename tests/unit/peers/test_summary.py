"""Cells, the best variant, lags: what a reader would compute by hand from the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import record as records
from benchmarks.peers.summary import best, lags, summarize
from support.peer_records import record


def test_a_cell_has_the_median_of_undisturbed_runs_and_counts_the_others() -> None:
    made = [
        record("a", "Q4_0", 10.0, others_cpu_share=0.01, stream_gb_per_s=30.0, figures={"decode_tokens_per_s": 20.0}),
        record("a", "Q4_0", 14.0, others_cpu_share=0.15, stream_gb_per_s=40.0, figures={"decode_tokens_per_s": 24.0}),
        record("a", "Q4_0", 99.0, others_cpu_share=0.16),
        record("a", "Q4_0", None, error="it ended with 1"),
    ]

    [cell] = summarize(made, 0.15)

    assert (cell.median, cell.values, cell.num_discarded) == (12.0, (10.0, 14.0), 2)
    assert cell.figures == {"decode_tokens_per_s": 22.0}
    assert cell.stream_gb_per_s == 35.0


def test_what_has_no_undisturbed_run_has_no_cell() -> None:
    assert summarize([record("a", "Q4_0", 10.0, others_cpu_share=0.5), record("a", "Q8_0", None)], 0.15) == []


def test_the_best_variant_is_that_of_the_highest_median_at_its_point() -> None:
    cells = summarize(
        [
            record("a", "Q4_0", 10.0),
            record("a", "BF16", 30.0),
            record("a", "BF16", 12.0),
            record("a", "Q8_0", 20.0),
            record("a", "Q8_0", 90.0, point="batch 1"),
        ],
        0.15,
    )

    found = best(cells, "batch 16", "a")
    assert found is not None
    assert (found.variant, found.median) == ("BF16", 21.0)
    eight = best(cells, "batch 16", "a", bits=8)
    assert eight is not None
    assert eight.variant == "Q8_0"
    assert best(cells, "batch 16", "b") is None


def test_the_best_by_another_figure_may_be_another_variant_and_needs_that_figure() -> None:
    cells = summarize(
        [
            record("a", "Q4_0", 10.0, figures={"decode_tokens_per_s": 5.0}),
            record("a", "BF16", 9.0, figures={"decode_tokens_per_s": 7.0}),
            record("a", "Q8_0", 20.0),
        ],
        0.15,
    )
    found = best(cells, "batch 16", "a", figure="decode_tokens_per_s")
    assert found is not None
    assert (found.variant, found.rate("decode_tokens_per_s")) == ("BF16", 7.0)
    assert best(cells, "batch 16", "a", figure="ttft_p50_ms") is None


@pytest.mark.parametrize(
    ("variant", "bits"),
    [("Q4_1", 4), ("Q4_K_M", 4), ("IQ4_XS", 4), ("Q8_0", 8), ("int8", 8), ("BF16", 16), ("bf16", 16), ("F32", 32),
     ("reference f32", 32), ("default", None), ("own", None), ("--weights int8", 8)],
)  # fmt: skip
def test_the_bits_of_a_weight_are_read_from_the_name(variant: str, bits: int | None) -> None:
    [cell] = summarize([record("a", variant, 1.0)], 0.15)
    assert cell.bits == bits


def test_lags_are_the_points_where_a_peers_best_beats_our_best_worst_first() -> None:
    cells = summarize(
        [
            record("trivium", "own", 100.0),
            record("trivium", "int8", 150.0),
            record("a", "Q4_0", 149.0),
            record("b", "bf16", 300.0),
            record("trivium", "own", 100.0, point="batch 1"),
            record("a", "Q4_0", 125.0, point="batch 1"),
            record("a", "Q4_0", 500.0, point="batch 64"),
        ],
        0.15,
    )

    found = [(lag.point, lag.peer.engine, lag.ours.variant, lag.ratio) for lag in lags(cells)]

    assert found == [("batch 16", "b", "int8", 0.5), ("batch 1", "a", "own", 0.8)]


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = [record("a", "Q4_0", 10.0, figures={"ttft_p50_ms": 3.5}), record("b", "int8", None, error="no")]
    for one in made:
        records.append(tmp_path / "new" / "lines.jsonl", one)
    assert records.read([tmp_path / "new" / "lines.jsonl"]) == made


def test_a_line_that_is_no_record_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for text in ('{"model": "tiny"}', "[1]", "not json", '{"colour": 1}'):
        path.write_text("\n" + text + "\n")
        with pytest.raises(ValueError, match=r"lines\.jsonl:2: not a measurement"):
            records.read([path])
