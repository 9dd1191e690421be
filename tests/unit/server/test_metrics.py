"""`/metrics`: histograms of answers, labels by reason, tier and kind, vLLM's names, and the dashboard over them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.fake_engine import FakeEngine, say
from support.server_site import MakeSite, Site
from trivium import __version__
from trivium.engine.messages import AnswerReport
from trivium.engine.stats import STEP_TOKENS_BUCKETS, EngineStats, StepTimes
from trivium.schedule.timeline import PreemptionKind, Start, Tier, Timeline, WaitReason
from trivium.server.answer_metrics import ANSWER_METRICS
from trivium.server.engine_metrics import BY_LABEL
from trivium.server.telemetry import documented_metrics
from trivium.server.vllm_names import VLLM_NAMES

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "docs" / "grafana" / "trivium.json"
VLLM_SECONDS = ("request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time")


def ended(**changes: Any) -> AnswerReport:
    """Report an answer that waited 1 s, read its prompt in 2 s, and drew 5 tokens in 4 s more."""
    timeline = Timeline(starts=[Start(at_s=1.0, waited={}, cached={})], first_token_s=3.0, finished_s=7.0)
    fields: dict[str, Any] = {
        "request_id": "r", "choice": 0, "state": "finished", "waits_for": None, "arrival_s": 0.0, "prompt_len": 100,
        "cached_len": 0, "computed_len": 0, "output_len": 5, "max_tokens": 50, "finish_reason": "stop", "waited": {},
        "timeline": timeline,
    }  # fmt: skip
    return AnswerReport(**{**fields, **changes})


async def read(site: Site) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = (await site.client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_an_answer_is_in_every_histogram_once(site: Site) -> None:
    site.engine.tell_end(ended())
    seen = await read(site)
    assert {name: seen[f"trivium_{name}_sum", ()] for name in ANSWER_METRICS} == {
        "queue_seconds": 1.0, "prefill_seconds": 2.0, "decode_seconds": 4.0, "inference_seconds": 6.0,
        "answer_seconds": 7.0, "time_per_output_token_seconds": 1.0, "answer_prompt_tokens": 100,
        "answer_generation_tokens": 5, "answer_max_tokens": 50,
    }  # fmt: skip
    assert {seen[f"trivium_{name}_count", ()] for name in ANSWER_METRICS} == {1}


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_answers_that_were_cut_short_distort_no_histogram(site: Site, reason: str) -> None:
    site.engine.tell_end(ended(finish_reason=reason))
    seen = await read(site)
    assert {seen[f"trivium_{name}_count", ()] for name in ANSWER_METRICS} == {0}


async def test_a_single_token_has_no_time_between_tokens(site: Site) -> None:
    site.engine.tell_end(ended(output_len=1))
    seen = await read(site)
    assert seen["trivium_time_per_output_token_seconds_count", ()] == 0
    assert seen["trivium_decode_seconds_count", ()] == 1


async def test_what_the_engine_keeps_apart_has_labels(site: Site) -> None:
    site.engine.condition.epoch = 3
    site.engine.condition.info = {"model": "m", "executor": "native", "arithmetic": "bf16", "architecture": "a"}
    site.engine.condition.stats = {
        "waiting_by_reason": {"seat": 2}, "wait_seconds_total": {"pages": 1.5}, "cached_tokens_total": {"disk": 64},
        "preemptions_by_kind_total": {"swap": 4}, "evicted_pages_total": 9, "step_tokens_total": 40,
        "step_tokens_buckets": [1, 2, *[0] * (len(STEP_TOKENS_BUCKETS) - 1)],
    }  # fmt: skip
    seen = await read(site)
    assert seen["trivium_requests_waiting_by_reason", (("reason", "seat"),)] == 2
    assert seen["trivium_wait_seconds_total", (("reason", "pages"),)] == 1.5
    assert seen["trivium_cached_prompt_tokens_total", (("tier", "disk"),)] == 64
    assert seen["trivium_preemptions_by_kind_total", (("kind", "swap"),)] == 4
    assert seen["trivium_evicted_pages_total", ()] == 9
    assert (seen["trivium_step_tokens_sum", ()], seen["trivium_step_tokens_count", ()]) == (40, 3)
    assert seen["trivium_engine_restarts_total", ()] == 2
    facts = {"model": "m", "executor": "native", "arithmetic": "bf16", "architecture": "a", "version": __version__}
    assert seen["trivium_build_info", tuple(sorted(facts.items()))] == 1


async def test_every_reason_tier_and_kind_is_there_from_the_start(site: Site) -> None:
    seen = await read(site)
    for name, label, values in (
        ("requests_waiting_by_reason", "reason", WaitReason),
        ("wait_seconds_total", "reason", WaitReason),
        ("cached_prompt_tokens_total", "tier", Tier),
        ("preemptions_by_kind_total", "kind", PreemptionKind),
    ):
        assert [seen[f"trivium_{name}", ((label, value),)] for value in values] == [0] * len(values)


async def test_errors_are_counted_by_code(make_site: MakeSite) -> None:
    site = make_site(FakeEngine(say("ok")))
    await site.complete(n=0)
    await site.post("/v1/completions", model="nope", prompt="a")
    seen = await read(site)
    route = ("route", "/v1/completions")
    assert seen["trivium_request_errors_total", (("code", "invalid_value"), route)] == 1
    assert seen["trivium_request_errors_total", (("code", "model_not_found"), route)] == 1


def test_steps_are_counted_by_their_tokens() -> None:
    stats = EngineStats()
    times = StepTimes(stats)
    for num_tokens in (1, 2, 3, 512, 100_000):
        times.note(0.0, 0.25, 0.5, num_tokens)
    times.count()
    assert stats.step_tokens_total == 100_518
    assert sum(stats.step_tokens_buckets) == stats.steps_total == 5
    assert stats.step_tokens_buckets[:3] == [1, 1, 1]
    assert stats.step_tokens_buckets[-1] == 1


async def test_vllms_names_are_shown_only_when_asked_for(make_site: MakeSite) -> None:
    plain, both = make_site(), make_site(vllm_metric_names=True)
    assert "vllm:" not in (await plain.client.get("/metrics")).text
    both.engine.tell_end(ended())
    both.engine.condition.stats = {
        "num_running": 2, "finished_total": {"stop": 5}, "cached_tokens_total": {"device": 3, "disk": 4},
        "preemptions_total": 6, "step_tokens_buckets": [3, *[0] * len(STEP_TOKENS_BUCKETS)],
    }  # fmt: skip
    seen = await read(both)
    ours = ("engine", "0"), ("model_name", "tiny")
    assert seen["vllm:num_requests_running", ours] == 2
    assert seen["vllm:num_preemptions_total", ours] == 6
    assert seen["vllm:prompt_tokens_cached_total", ours] == 7
    assert seen["vllm:request_success_total", (ours[0], ("finished_reason", "stop"), ours[1])] == 5
    assert [seen[f"vllm:{name}_seconds_sum", ours] for name in VLLM_SECONDS] == [1.0, 2.0, 4.0, 6.0]
    assert seen["vllm:e2e_request_latency_seconds_bucket", (ours[0], ("le", "10.0"), ours[1])] == 1
    assert seen["vllm:iteration_tokens_total_count", ours] == 3


async def test_every_alias_is_of_a_metric_that_exists(make_site: MakeSite) -> None:
    documented = {theirs for _, _, _, theirs in documented_metrics() if theirs}
    assert len(documented) == len(VLLM_NAMES)


def test_the_dashboard_is_what_its_tool_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "grafana_dashboard.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    assert outcome.returncode == 0, outcome.stderr


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert (board["uid"], board["title"]) == ("trivium", "Trivium")
    assert board["schemaVersion"] >= 36
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", board["uid"])
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        ids = [target["refId"] for target in panel["targets"]]
        assert len(set(ids)) == len(ids)
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])


def shown_by_the_dashboard() -> set[str]:
    """Return the names of all samples that the dashboard asks for."""
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [one["definition"] for one in board["templating"]["list"] if "definition" in one]
    return {name for query in queries for name in re.findall(r"trivium_\w+", query)}


async def test_every_metric_of_the_dashboard_exists_and_every_metric_is_on_it(site: Site) -> None:
    await site.complete(n=0)
    told = {"finished_total": {"stop": 1}, **{key: {"disk": 1.0} for key in BY_LABEL if key.startswith("tier_")}}
    site.engine.condition.stats = {**msgspec.to_builtins(EngineStats()), **told}
    shown = shown_by_the_dashboard()
    assert shown <= {name for name, _ in await read(site)}
    assert [name for name, *_ in documented_metrics() if not {name, f"{name}_bucket"} & shown] == []
