"""Explanations: every instruction is counted once, figures add up, and page and pictures stand alone."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from support.small_plan import small_plan, small_stored, with_instruction
from trivium.plan.cost import MachineLimits, chunk, decode
from trivium.plan.explain import Explanation, explain
from trivium.plan.explain_page import explanation_page
from trivium.plan.explain_text import explanation_text, markdown_table
from trivium.plan.picture_arena import arena_picture, lives
from trivium.plan.picture_program import Repeat, find_repeat, program_picture
from trivium.plan.program import Instruction, Plan

LIMITS = MachineLimits(memory_bytes=35e9, cache_bytes=180e9, operations={"int8": 9e11, "bf16": 4e11, "f32": 2e11})
LOADS = (decode(1, kv_len=64), decode(16, kv_len=64), chunk(128))


def explained(plan: Plan | None = None, **options: Any) -> Explanation:
    return explain(plan or small_plan(), LOADS, LIMITS, **options)


def test_instructions_that_are_alike_share_a_row_and_all_are_there() -> None:
    found = explained()
    places = sorted(place for row in found.rows for place in row.places)
    assert places == list(range(12)) == list(range(found.num_instructions))
    assert [row.places for row in found.rows if row.op == "add_norm"] == [(2, 7), (10,)]
    each = explained(is_grouped=False)
    assert [row.places for row in each.rows] == [(place,) for place in range(12)]
    for one, other in zip(found.totals, each.totals, strict=True):
        assert one.predicted_s == pytest.approx(other.predicted_s)
        assert one.cost.operations == other.cost.operations


def test_another_tactic_is_another_row() -> None:
    tuned = with_instruction(small_plan(), 6, tactic={"kernel": "unpacked", "4": "direct"})
    rows = explained(tuned).rows
    assert next(row for row in rows if row.places == (6,)).tactic == "≤4 direct, else unpacked"


def test_measured_seconds_are_added_by_row_and_compared() -> None:
    seconds = [1e-6 * (place + 1) for place in range(12)]
    found = explained(measured={1: seconds})
    assert [figures.measured_s is None for figures in found.totals] == [True, False, True]
    norms = next(row for row in found.rows if row.places == (2, 7))
    assert norms.figures[1].measured_s == pytest.approx(3e-6 + 8e-6)
    assert found.totals[1].measured_s == pytest.approx(sum(seconds))
    assert found.totals[1].share == pytest.approx(found.totals[1].predicted_s / sum(seconds))


def test_calls_and_fused_instructions_are_counted() -> None:
    found = explained()
    assert (found.native_calls, found.num_instructions, found.num_fused) == (2, 12, 10)


def test_the_text_has_a_line_for_every_row_and_columns_for_what_was_measured() -> None:
    text = explanation_text(explained(measured={0: [1e-6] * 12}))
    assert "2 native calls per step (forward, sample)" in text
    assert "12 instructions, 10 of them fused" in text
    assert "memory 35.0 GB/s, cache 180 GB/s, int8 900 GOPS" in text
    first, second, third = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert first.startswith("1 request, one token each, 64 tokens of context")
    assert second.startswith("16 requests, one token each")
    assert third.startswith("a prompt of 128 tokens")
    assert "measured us" in first
    assert "measured us" not in second
    assert first.count("\n| ") == 14 == second.count("\n| ")  # header, rule, 11 rows, total
    assert re.search(r"\| 64 → 64\+32\+32 +\| q8 x i4m_g32 +\| rule +\|", text)


def test_a_table_is_aligned_markdown() -> None:
    table = markdown_table(("#", "name", "us"), [("1", "a", "10.5"), ("22", "bcd", "1.0")])
    assert table.split("\n") == [
        "|  # | name |   us |",
        "| -: | ---- | ---: |",
        "|  1 | a    | 10.5 |",
        "| 22 | bcd  |  1.0 |",
    ]


class Page(HTMLParser):
    """Collects tags and their attributes, and notices what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = explanation_page(small_stored(), explained(measured={0: [1e-6] * 12}))
    page = Page(text)
    assert page.open == []
    assert page.tags.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload", "xlink:href"}
    assert "url(" not in text
    assert "http" not in text.replace("DOCTYPE html", "")


def test_what_a_plan_says_cannot_break_the_page() -> None:
    origin = replace(small_stored().origin, model="<script>alert('x')</script>", processor='A "B" & C')
    text = explanation_page(small_stored(origin=origin), explained())
    assert "script" not in Page(text).tags
    assert "A &quot;B&quot; &amp; C" in text


def test_the_arena_shows_every_life_where_its_bytes_are() -> None:
    plan = small_plan()
    drawing = ET.fromstring(arena_picture(plan, "base"))  # noqa: S314  (our own text)
    boxes = [box for box in drawing.iter("rect") if "value" in (box.get("class") or "")]
    assert len(boxes) == 12
    titles = {box[0].text for box in boxes}
    assert "qkv: f32 [T, 128], 64.00 KiB at 51200, instructions 3 to 4" in titles
    assert "logits: f32 [R, 320], 10.00 KiB at 185984, instructions 11 to 11" in titles
    by_name = {str(box[0].text).split(":")[0]: box for box in boxes}
    start, end = float(by_name["x"].get("x") or 0), float(by_name["after_attention"].get("x") or 0)
    assert start < end
    assert by_name["x"].get("y") == by_name["after_attention"].get("y")


def test_a_buffer_that_is_written_twice_has_two_lives() -> None:
    def step(reads: dict[str, str], out: str) -> Instruction:
        return Instruction(op="scale", reads=reads, writes={"out": out}, attrs={"factor": 2.0})

    plan = small_plan()
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    program = replace(
        plan.programs["base"],
        instructions=(step({}, "x"), step({"x": "x"}, "q"), step({"x": "q"}, "x"), step({"x": "x"}, "q")),
        outputs={"logits": "q"},
    )
    assert [(life.buffer.name, life.first, life.last) for life in lives(program, buffers)] == [
        ("x", 0, 1),
        ("q", 1, 2),
        ("x", 2, 3),
        ("q", 3, 3),
    ]


def test_a_block_that_repeats_is_found() -> None:
    assert find_repeat(list("abcabcabcz")) == Repeat(0, 3, 3)
    assert find_repeat(list("xabababz")) == Repeat(1, 2, 3)
    assert find_repeat(list("abc")) == Repeat(0, 3, 1)
    assert find_repeat([]) == Repeat(0, 0, 1)


def test_the_rows_of_a_repeat_fold_every_place_once() -> None:
    repeat = Repeat(2, 3, 4)
    assert [repeat.drawn(place) for place in range(16)] == [0, 1, *[2, 3, 4] * 4, 5, 6]


def test_the_program_is_drawn_with_its_edges_in_lanes_that_do_not_cross_out_others() -> None:
    drawing = ET.fromstring(program_picture(small_plan(), "base"))  # noqa: S314  (our own text)
    texts = [text.text for text in drawing.iter("text")]
    assert len(texts) == 12
    assert texts[3] == "3 projection  64 → 64+32+32"
    titles = [path[0].text for path in drawing.iter("path")]
    assert {"normed", "qkv", "table", "x", "logits"} & set(titles) == {"normed", "qkv", "table", "x"}


def test_edges_of_one_lane_share_no_rows() -> None:
    drawing = ET.fromstring(program_picture(small_plan(), "base"))  # noqa: S314  (our own text)
    spans: dict[float, list[tuple[float, float]]] = {}
    for path in drawing.iter("path"):
        found = re.fullmatch(r"M \S+ (\S+) H (\S+) V (\S+) H \S+", path.get("d") or "")
        if found:
            start, lane, end = map(float, found.groups())
            spans.setdefault(lane, []).append((min(start, end), max(start, end)))
    assert spans
    for lane in spans.values():
        assert all(first[1] < second[0] for first, second in pairwise(sorted(lane)))
