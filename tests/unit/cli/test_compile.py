"""`compile`, `explain`, `verify`, `plans` on a tiny model: every command, what it says, and how it fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from support.tiny_model import write_tiny_model
from trivium.cli import explain as explain_command
from trivium.compile.tuner import TuningCache
from trivium.kernels import native
from trivium.plan.format import plan_file, read_plan
from trivium.plan.machine import this_machine
from trivium.runtime.native import NativeExecutor

pytestmark = pytest.mark.skipif(not native.describe().is_present, reason="needs the native module")


@pytest.fixture(autouse=True)
def any_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_EXECUTOR", "auto")


def compiled(trivium: Run, *words: object) -> list[dict[str, Any]]:
    outcome = trivium("compile", *words, "--tune", "off", "--json")
    assert outcome.code == 0, outcome.err
    found: list[dict[str, Any]] = json.loads(outcome.out)
    return found


def listed(trivium: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trivium("plans", "list", "--json").out)
    return found


def test_compiling_leaves_a_plan_and_packed_weights_that_the_next_time_finds(trivium: Run, tiny: Path) -> None:
    [first] = compiled(trivium, tiny)
    [again] = compiled(trivium, tiny)
    assert (first["was_compiled"], again["was_compiled"]) == (True, False)
    assert first["compile_seconds"] > 0 == again["compile_seconds"]
    assert first["packing_seconds"] > 0 == again["packing_seconds"]
    assert first["plan"] == again["plan"]
    assert read_plan(Path(first["plan_path"]).parent).key.name == first["plan"]
    assert Path(first["weights_path"]).stat().st_size > first["weight_bytes"] > 0
    assert {entry["kind"] for entry in listed(trivium)} == {"plan", "weights"}


def test_three_checkpoints_at_two_precisions_are_two_compiles_and_the_total_says_so(
    trivium: Run, tmp_path: Path
) -> None:
    models = [write_tiny_model(tmp_path / f"tiny-{seed}", seed=seed) for seed in range(3)]
    own = compiled(trivium, *models)
    halved = compiled(trivium, models[0], "--weights", "int8")
    assert [one["was_compiled"] for one in (*own, *halved)] == [True, False, False, True]
    assert len({one["plan"] for one in own}) == 1
    assert len({one["weights_path"] for one in (*own, *halved)}) == 4
    outcome = trivium("compile", *models, "--tune", "off", "--weights", "bf16")
    *_, total = outcome.out.splitlines()
    compile_part, packing_part = "3 models, 1 compiled in ", " s, 3 packed in "
    assert total.startswith("total: ")
    assert compile_part in total
    assert packing_part in total
    assert "tuning 0.00 s" in total


def test_groups_of_64_are_compiled_verified_and_run_from_their_directory(
    trivium: Run, tiny: Path, tmp_path: Path
) -> None:
    wide = ("--weights", "int8", "--activation-group", "64")
    [narrow], [found] = compiled(trivium, tiny, "--weights", "int8"), compiled(trivium, tiny, *wide, "-o", tmp_path)
    assert (narrow["plan"] == found["plan"], found["was_compiled"]) == (False, True)
    plan = read_plan(tmp_path).plan
    assert {buffer.kind for buffer in plan.buffers} >= {"q8_wide"}
    assert {weight.format for weight in plan.weights if len(weight.shape) > 1} == {"i8_g64"}
    assert trivium("verify", tmp_path).code == 0
    asked = ("generate", tiny, "-p", "ab", "--max-tokens", "4", "--temperature", "0", "--json")
    by_plan, by_flags = trivium(*asked, *wide, "--plan", tmp_path), trivium(*asked, *wide)
    assert (by_plan.code, by_flags.code) == (0, 0), by_plan.err
    assert json.loads(by_plan.out)["outputs"] == json.loads(by_flags.out)["outputs"]


@pytest.mark.parametrize("weights", ["f32", "bf16", "int8", "int4"])
def test_a_plan_of_weights_made_at_load_is_judged_by_these_weights(trivium: Run, tiny: Path, weights: str) -> None:
    outcome = trivium("verify", tiny, "--weights", weights)
    assert outcome.code == 0, outcome.out


def test_groups_of_64_are_refused_where_no_weights_have_them(trivium: Run, tiny: Path) -> None:
    outcome = trivium("compile", tiny, "--tune", "off", "--activation-group", "64")
    assert outcome.code != 0
    assert "activation_group is 64, but no weights of" in outcome.err
    assert "set weights to int8, or leave activation_group out" in outcome.err


def test_a_plan_in_a_directory_runs_any_checkpoint_of_its_shapes(trivium: Run, tmp_path: Path) -> None:
    first, other = (write_tiny_model(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two")))
    compiled(trivium, first, "-o", tmp_path / "plan")
    for model in (first, other):
        answer = trivium("generate", model, "-p", "ab", "--plan", tmp_path / "plan", "--max-tokens", "4", "--json")
        assert answer.code == 0, answer.err
    for words in ((), ("--model", other)):  # the first one is known by its path
        verified = trivium("verify", tmp_path / "plan", *words)
        assert verified.code == 0, verified.err
        assert "The plan does what the model says." in verified.out


def test_a_named_plan_that_does_not_fit_is_an_error_that_says_why(trivium: Run, tiny: Path, tmp_path: Path) -> None:
    compiled(trivium, tiny, "-o", tmp_path / "plan")
    outcome = trivium("generate", tiny, "-p", "x", "--plan", tmp_path / "plan", "--max-num-batched-tokens", "1024")
    assert outcome.code == 1
    assert f"the plan {tmp_path / 'plan'} was compiled for max_num_batched_tokens 512, asked 1024" in outcome.err
    assert f"trivium compile {tiny} -o {tmp_path / 'plan'}" in outcome.err


def test_one_directory_takes_one_model(trivium: Run, tiny: Path, tmp_path: Path) -> None:
    outcome = trivium("compile", tiny, tiny, "-o", tmp_path / "plan")
    assert outcome.code == 2
    assert "there are 2 models" in outcome.err


def test_every_stage_of_a_graph_can_be_printed(trivium: Run, tiny: Path) -> None:
    all_of_them = trivium("compile", tiny, "--print-after", "all").out
    headings = [line for line in all_of_them.splitlines() if line.startswith("# ")]
    assert headings[0] == "# base: as it came"
    assert len(headings) > 8
    assert len(set(headings)) == len(headings)
    one = trivium("compile", tiny, "--print-after", "fuse_attention").out
    assert one.startswith("# base: after fuse attention\ngraph LlamaForCausalLM\n")
    assert one in all_of_them
    other = trivium("compile", tiny, "--print-after", "add-adapters", "--program", "adapters").out
    assert other.startswith("# adapters: after add adapters\n")
    assert "adapter_delta" in other
    assert listed(trivium) == []


def test_a_pass_that_does_not_exist_is_refused_with_those_that_do(trivium: Run, tiny: Path) -> None:
    outcome = trivium("compile", tiny, "--print-after", "optimize")
    assert outcome.code == 2
    assert "--print-after is 'optimize'; it must be all or one of input, fold-constants" in outcome.err


def test_tuning_times_products_once_and_remembers_them(trivium: Run, tiny: Path) -> None:
    words = ("compile", tiny, "--tune", "quick", "--weights", "int4", "--max-num-batched-tokens", "4", "--json")
    [first], [again] = (json.loads(trivium(*words, "--max-num-seqs", "2").out) for _ in range(2))
    assert first["num_timed"] + first["num_left"] == first["num_products"] > 0
    assert first["num_timed"] > 0
    assert again["num_known"] == first["num_timed"]
    assert again["num_timed"] <= first["num_left"]


def test_what_the_native_executor_cannot_run_is_not_compiled(trivium: Run, tiny: Path) -> None:
    outcome = trivium("compile", tiny, "--page-len", "4")
    assert outcome.code == 2
    assert "page_len is 4" in outcome.err


def test_explaining_a_model_times_it(trivium: Run, tiny: Path, tmp_path: Path) -> None:
    outcome = trivium("explain", tiny, "--html", tmp_path / "page.html", "--context", "8", "--tokens", "1,70")
    assert outcome.code == 0, outcome.err
    assert "2 native calls per step (forward, sample)" in outcome.out
    assert "### 1 request, one token each, 8 tokens of context" in outcome.out
    assert "### a prompt of 70 tokens" in outcome.out
    assert outcome.out.count("measured us") == 2
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_explaining_a_directory_of_a_model_that_is_gone_predicts_and_says_why_nothing_is_timed(
    trivium: Run, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    compiled(trivium, model, "-o", tmp_path / "plan")
    model = model.rename(tmp_path / "moved")
    outcome = trivium("explain", tmp_path / "plan", "--offline")
    assert outcome.code == 0, outcome.err
    assert f"nothing is timed: no model '{tmp_path / 'tiny'}'" in outcome.err
    assert f"The plan {tmp_path / 'plan'} was compiled for it; name weights with --model" in outcome.err
    assert "predicted us" in outcome.out
    assert "measured us" not in outcome.out
    named = trivium("explain", tmp_path / "plan", "--model", model, "--tokens", "1")
    assert "measured us" in named.out


def test_each_instruction_gets_a_row_when_asked(trivium: Run, tiny: Path) -> None:
    short, long = (trivium("explain", tiny, "--no-measure", "--tokens", "1", *more).out for more in ((), ("--each",)))
    assert long.count("| add_norm") > short.count("| add_norm")
    adapters = trivium("explain", tiny, "--no-measure", "--tokens", "1", "--program", "adapters").out
    assert "adapter_delta" in adapters
    assert "adapter_delta" not in short


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tokens", "600"), "--tokens is 600; a step of this plan has 1 to 512 tokens"),
        (("--tokens", "0"), "--tokens is 0"),
        (("--tokens", "1,x"), "--tokens is '1,x'; it must be whole numbers"),
        (("--context", "0"), "--context is 0"),
    ],
)
def test_steps_that_a_plan_cannot_have_are_refused(
    trivium: Run, tiny: Path, words: tuple[str, ...], message: str
) -> None:
    outcome = trivium("explain", tiny, "--no-measure", *words)
    assert outcome.code == 2
    assert message in outcome.err


def test_loads_are_decodes_as_far_as_rows_allow(trivium: Run, tiny: Path) -> None:
    [found] = compiled(trivium, tiny, "--max-num-seqs", "16")
    plan = read_plan(Path(found["plan_path"]).parent).plan
    loads = explain_command.choose_loads(plan, (), 32)
    assert [(load.num_tokens, load.num_requests) for load in loads] == [(1, 1), (16, 16), (64, 1), (512, 1)]


def test_verifying_names_the_first_instruction_that_is_wrong(
    trivium: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = trivium("verify", tiny, "--json")
    assert right.code == 0, right.err
    facts = json.loads(right.out)
    assert facts["is_right"]
    assert facts["first_wrong"] is None
    assert facts["num_steps"] == 3

    own = NativeExecutor.trace

    def broken(self: NativeExecutor, step: Any) -> Any:
        trace = own(self, step)
        next(iter(trace[5].values()))[-1, 3] += 0.5
        return trace

    monkeypatch.setattr(NativeExecutor, "trace", broken)
    wrong = trivium("verify", tiny, "--json")
    assert wrong.code == 1
    assert json.loads(wrong.out)["first_wrong"]["place"] == 5
    assert "WRONG: first at instruction 5, " in trivium("verify", tiny).out


def test_a_text_of_one_token_is_too_short_to_verify_with(trivium: Run, tiny: Path) -> None:
    outcome = trivium("verify", tiny, "--text", "a")
    assert outcome.code == 2
    assert "--text has 1 tokens" in outcome.err


def test_a_plan_of_few_rows_cannot_be_verified_and_says_so(trivium: Run, tiny: Path) -> None:
    outcome = trivium("verify", tiny, "--max-num-seqs", "2")
    assert outcome.code == 2
    assert "max_num_seqs of this plan is 2; to verify takes at least 4: compile with more" in outcome.err


def test_plans_are_shown_by_name_and_by_directory(trivium: Run, tiny: Path, tmp_path: Path) -> None:
    [found] = compiled(trivium, tiny, "-o", tmp_path / "plan")
    shown = trivium("plans", "show", found["plan"][:5]).out
    assert "max_num_batched_tokens" in shown
    assert tiny.name in shown
    assert "LlamaForCausalLM" in trivium("plans", "show", tmp_path / "plan").out
    printed = trivium("plans", "show", found["plan"], "--json").out
    assert printed == plan_file(Path(found["plan_path"]).parent).read_text()
    missing = trivium("plans", "show", "zz")
    assert missing.code == 1
    assert "no plan begins with 'zz'" in missing.err


def test_pruning_removes_what_is_foreign_and_says_what(trivium: Run, tiny: Path, tmp_path: Path) -> None:
    compiled(trivium, tiny)
    foreign = tmp_path / "cache" / "plans" / "0123456789abcdef"
    foreign.mkdir()
    plan_file(foreign).write_text("{}")
    TuningCache(tmp_path / "cache", replace(this_machine(), processor="Other 9000")).keep({})
    dry = trivium("plans", "prune", "--dry-run")
    assert "plan 0123456789abcdef of -: " in dry.out
    assert dry.out.splitlines()[-1] == "would free 2 B; timings of 1 other machines or kernels would be forgotten"
    assert foreign.exists()
    removed = json.loads(trivium("plans", "prune", "--json").out)
    assert [(entry["name"], entry["reason"]) for entry in removed] == [("0123456789abcdef", "unusable")]
    assert {entry["state"] for entry in listed(trivium)} == {"current"}
    emptied = trivium("plans", "prune", "--older-than-days", "0")
    assert emptied.code == 0
    *entries, last = emptied.out.splitlines()
    assert [entry.split()[0] for entry in entries] == ["plan", "weights"]
    assert all(entry.endswith(", last used today") for entry in entries)
    assert last.endswith("; timings of 0 other machines or kernels forgotten")
    assert listed(trivium) == []
    assert TuningCache(tmp_path / "cache", this_machine()).num_others() == 0


def test_a_negative_age_is_refused(trivium: Run) -> None:
    outcome = trivium("plans", "prune", "--older-than-days", "-1")
    assert outcome.code == 2
    assert "--older-than-days is -1" in outcome.err
