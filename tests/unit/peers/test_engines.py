"""What peers' tools print is read for what was asked, and refused when it tells of something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers.engines.llama_cpp import LlamaCpp, read_batched_bench, read_bench
from benchmarks.peers.engines.openvino import OpenVino
from benchmarks.peers.engines.trivium import OwnVariant, Trivium, read_flags
from benchmarks.peers.engines.vllm import Vllm
from benchmarks.peers.models import BenchModel, name_plain_tokenizer
from benchmarks.peers.points import Point, choose
from benchmarks.peers.workdir import JobFailedError, WorkDir
from support.peer_records import MODEL


def point(name: str) -> Point:
    [found] = choose(["single", "prefill", "batch", "online"], [name])
    return found


def batch_line(size: int, t_pp: float, t_tg: float) -> dict[str, float]:
    speeds = {"speed_pp": size * 128 / t_pp, "speed_tg": size * 128 / t_tg}
    return {"pp": 128, "tg": 128, "pl": size, "t_pp": t_pp, "t_tg": t_tg, **speeds}


def bench_line(n_prompt: int, n_gen: int, samples: list[float]) -> dict[str, object]:
    return {"n_prompt": n_prompt, "n_gen": n_gen, "samples_ts": samples}


def test_the_median_repetition_of_llama_bench_counts() -> None:
    assert read_bench([bench_line(512, 0, [700.0, 100.0, 650.0])], point("prefill 512")).tokens_per_s == 650.0
    assert read_bench([bench_line(0, 128, [90.0])], point("decode 128")).tokens_per_s == 90.0


@pytest.mark.parametrize("lines", [[], [bench_line(512, 0, [1.0])] * 2, [bench_line(0, 128, [1.0])]])
def test_llama_bench_telling_of_another_test_is_refused(lines: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="asked for"):
        read_bench(lines, point("prefill 512"))


def test_output_tokens_of_a_batch_are_over_prefill_and_decode_together() -> None:
    made = read_batched_bench([batch_line(4, 1.0, 3.0), batch_line(4, 2.0, 6.0)], point("batch 4"))
    assert made.tokens_per_s == pytest.approx((512 / 4 + 512 / 8) / 2)
    assert made.figures["decode_tokens_per_s"] == pytest.approx((512 / 3 + 512 / 6) / 2)
    assert made.figures["prefill_tokens_per_s"] == pytest.approx((512 / 1 + 512 / 2) / 2)


def test_a_batch_that_did_not_fit_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"asked for 1 times \(128, 128, 64\) and told of \[\]"):
        read_batched_bench([], point("batch 64"))


def test_log_lines_between_the_tools_lines_are_skipped(tmp_path: Path) -> None:
    engine = LlamaCpp(WorkDir(tmp_path), threads=2, python="python3", jobs=1)
    output = "\n".join(["main: n_kv_max = 4", json.dumps(batch_line(16, 1.0, 1.0)), "", "llama_perf: 3 ms"])
    assert engine.read(output, point("batch 16")).tokens_per_s == pytest.approx(16 * 128 / 2)


def test_llama_cpp_has_the_files_own_format_once_and_all_engines_serve_over_http(tmp_path: Path) -> None:
    work = WorkDir(tmp_path)
    llama = LlamaCpp(work, threads=2, python="python3", jobs=1)
    assert llama.variants(MODEL, point("batch 16")) == ("Q4_1", "Q4_0", "Q8_0", "BF16")
    assert llama.variants(BenchModel("m", Path("m.Q8_0.gguf")), point("batch 16")) == ("Q8_0", "Q4_0", "BF16")
    assert OpenVino(work, threads=2, python="python3").variants(MODEL, point("HTTP 16")) == ("int8",)
    assert OpenVino(work, threads=2, python="python3").variants(MODEL, point("batch 16")) == ()
    assert Vllm(work, threads=2, python="python3").variants(MODEL, point("HTTP 64")) == ("bf16",)


def test_a_tool_that_is_missing_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    engine = LlamaCpp(WorkDir(tmp_path), threads=2, python="python3", jobs=1)
    assert engine.version() is None
    with pytest.raises(JobFailedError, match="run install llama-cpp"):
        engine.process(MODEL, "Q4_1", point("prefill 512"))


def test_llama_server_gets_a_slot_of_the_needed_length_per_request(tmp_path: Path) -> None:
    tool = tmp_path / "llama-cpp" / "build" / "bin" / "llama-server"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    words = (
        LlamaCpp(WorkDir(tmp_path), threads=2, python="p", jobs=1).server(MODEL, "Q4_1", point("HTTP 16"), 99).command
    )
    assert words[words.index("-np") + 1] == "16"
    assert int(words[words.index("-c") + 1]) // 16 >= 128 + 128 + 1
    assert words[words.index("--port") + 1] == "99"


@pytest.mark.parametrize(
    ("name", "own"),
    [("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"), ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
     ("model-BF16.gguf", "BF16"), ("model.gguf", "own")],
)  # fmt: skip
def test_the_own_format_is_read_from_the_files_name(name: str, own: str) -> None:
    assert BenchModel("m", Path(name)).own_format == own


def test_options_of_ours_are_read_with_and_without_a_label() -> None:
    assert OwnVariant.parse("f32=--executor reference --page-len=32 --no-prefix-cache") == OwnVariant(
        "f32", {"executor": "reference", "page_len": "32", "prefix_cache": False}
    )
    assert OwnVariant.parse("--page-len=32 --offline") == OwnVariant(
        "--page-len=32 --offline", {"page_len": "32", "offline": True}
    )
    assert OwnVariant.parse("") == OwnVariant("default", {})


@pytest.mark.parametrize("words", [["--colour", "red"], ["--page-len"], ["--no-page-len", "3"], ["stray"]])
def test_what_is_no_option_of_the_engine_is_refused(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"is not an option of the engine|lacks its value"):
        read_flags(words)


def test_options_given_override_ours_and_reach_server_and_process_alike(tmp_path: Path) -> None:
    words = tmp_path / "models" / "tiny" / "words.json"
    words.parent.mkdir(parents=True)
    words.write_text("[5]")
    engine = Trivium(WorkDir(tmp_path), threads=2, variants=[OwnVariant.parse("x=--threads 1 --no-prefix-cache")])
    served = engine.server(MODEL, "x", point("HTTP 16"), 81).command
    assert served[served.index("--threads") + 1] == "1"
    assert served.count("--threads") == 1
    assert "--no-prefix-cache" in served
    run = engine.process(MODEL, "x", point("batch 128")).command
    flags = json.loads(run[run.index("--flags") + 1])
    assert flags["threads"] == "1"
    assert flags["prefix_cache"] is False
    assert flags["max_num_seqs"] == "128"
    assert engine.read('{"tokens_per_s": 3.0}', point("batch 16")).tokens_per_s == 3.0


def test_a_converted_checkpoint_names_the_tokenizer_that_reads_its_file(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"tokenizer_class": "CodeLlamaTokenizer", "bos_token_id": 1}))
    for _ in range(2):
        name_plain_tokenizer(config)
        assert json.loads(config.read_text()) == {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token_id": 1}
