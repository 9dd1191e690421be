"""The trace of steps: whole and readable at any moment, bounded, true to the steps, and not there when it is off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.tiny_engine import tiny_loop, tiny_model
from trivium.api import LLM
from trivium.base.errors import ConfigError
from trivium.config.sampling import SamplingParams
from trivium.engine.loop import EngineLoop
from trivium.engine.messages import Submit
from trivium.engine.step_trace import StepTrace

PARTS = ("choose", "forward", "sample", "commit", "read")
LEAST_BYTES = 1 << 16


def run(loop: EngineLoop, *prompts: Sequence[int], max_tokens: int = 4) -> int:
    """Answer prompts, and return how many steps that took."""
    for idx, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0, seed=1)
        loop.submit(Submit(request_id=f"r{idx}", prompt_ids=list(prompt), params=params))
    before = loop.stats()["steps_total"]
    while loop.has_work:
        loop.step()
    after = loop.stats()["steps_total"]
    assert isinstance(before, int)
    assert isinstance(after, int)
    return after - before


def events(path: Path, *, is_ended: bool) -> list[dict[str, Any]]:
    text = path.read_text()
    read: list[dict[str, Any]] = json.loads(text if is_ended else text + "]")
    return read


def spans(found: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["name"] == name]


def test_every_step_has_its_parts_in_order_inside_it(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    loop = tiny_loop(trace_steps=path, max_num_batched_tokens=8)
    num_steps = run(loop, range(3, 23), range(3, 9))
    found = events(path, is_ended=False)
    steps = spans(found, "step")
    assert len(steps) == num_steps
    for name in PARTS:
        assert len(spans(found, name)) == num_steps, name
    for idx, step in enumerate(steps):
        parts = [spans(found, name)[idx] for name in PARTS]
        moments = [step["ts"], *(moment for part in parts for moment in (part["ts"], part["ts"] + part["dur"]))]
        moments.append(step["ts"] + step["dur"])
        assert all(one <= other + 0.002 for one, other in pairwise(moments)), "to a nanosecond"
    loop.close()
    assert len(events(path, is_ended=True)) == len(found)


def test_counters_are_those_of_the_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    loop = tiny_loop(trace_steps=path, max_num_batched_tokens=8, max_num_seqs=1)
    run(loop, range(3, 23), range(30, 36), max_tokens=3)
    found = events(path, is_ended=False)
    names = ("tokens", "requests", "pages")
    counted = {name: [e["args"] for e in found if e["ph"] == "C" and e["name"] == name] for name in names}
    kinds = [(one["prefill"], one["decode"]) for one in counted["tokens"]]
    assert kinds == [(8, 0), (8, 0), (4, 0), (0, 1), (0, 1), (6, 0), (0, 1), (0, 1)]
    assert [one["waiting"] for one in counted["requests"]] == [1] * 5 + [0] * 3
    assert [one["running"] for one in counted["requests"]] == [1, 1, 1, 1, 0, 1, 1, 0]
    total = loop.stats()["kv_pages_total"]
    assert all(sum(one.values()) == total for one in counted["pages"])
    assert [step["args"]["tokens"] for step in spans(found, "step")] == [8, 8, 4, 1, 1, 6, 1, 1]
    loop.close()


def test_a_failed_step_leaves_a_readable_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "steps.json"
    loop = tiny_loop(trace_steps=path)
    monkeypatch.setattr(loop._executor, "forward", lambda step: 1 / 0)
    run(loop, range(3, 9))
    found = events(path, is_ended=False)
    assert (len(spans(found, "step")), spans(found, "commit")) == (1, [])
    loop.close()


def test_a_file_that_is_full_becomes_the_older_one(tmp_path: Path) -> None:
    path, older = tmp_path / "steps.json", tmp_path / "steps.json.1"
    path.write_text("of an engine that died")
    trace = StepTrace(path, LEAST_BYTES)
    assert older.read_text() == "of an engine that died"
    for idx in range(3000):
        trace.span("step", idx * 1000, idx * 1000 + 500, tokens=idx)
        trace.flush()
    assert path.stat().st_size + older.stat().st_size <= LEAST_BYTES + 1024
    trace.close()
    kept = [event["args"]["tokens"] for file in (older, path) for event in spans(events(file, is_ended=True), "step")]
    assert kept == list(range(kept[0], 3000))
    assert len(kept) > 200


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace_steps: cannot write .*missing.*No such file"):
        tiny_loop(trace_steps=tmp_path / "missing" / "steps.json")
    with pytest.raises(ConfigError, match="trace_steps_bytes is 1"):
        tiny_loop(trace_steps=tmp_path / "steps.json", trace_steps_bytes=1)


def test_a_full_disk_ends_the_trace_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tiny_loop(trace_steps=tmp_path / "steps.json")
    assert loop.trace is not None

    def fail(payload: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.trace, "_write", fail)
    assert run(loop, range(3, 9)) > 0
    monkeypatch.undo()
    assert run(loop, range(3, 9)) > 0
    loop.close()


def test_nothing_is_replaced_when_it_is_off() -> None:
    loop = tiny_loop()
    parts = {
        loop: ("step", "_read"),
        loop._executor: ("forward", "sample"),
        loop._scheduler: ("next", "commit", "discard"),
    }
    for holder, names in parts.items():
        assert not set(names) & set(vars(holder))
    loop.close()


def test_an_llm_writes_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"

    with LLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1, trace_steps=path) as llm:
        llm.generate("hello", SamplingParams(max_tokens=3))
    assert len(spans(events(path, is_ended=True), "step")) == 3
