"""LoRA adapters in a real server over the tiny model: bits, caches, slots, loading while answers run, dying engines."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from support.sse import chunks, texts_by_index
from support.tiny_adapters import adapter_tensors, module_shapes, write_adapter
from support.tiny_engine import deep_model, tiny_model
from support.tiny_model import FFN, HEAD_WIDTH, HEADS, KV_HEADS, LAYERS, WIDTH
from support.tiny_server import TinyServer, tiny_server
from trivium import LLM, AsyncLLM, LoRARequest, SamplingParams
from trivium.base.errors import AdapterError, ConfigError, InvalidParameterError, ModelNotFoundError

CONFIG = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
          "num_key_value_heads": KV_HEADS, "head_dim": HEAD_WIDTH}  # fmt: skip
MODULES = [name.split(".")[1] for name in module_shapes(CONFIG)]
PROMPT = "a prompt that is so long that it has several pages of tokens, and then some more of them"


def write(folder: Path, seed: int, *, rank: int = 4, num_layers: int = LAYERS, **says: Any) -> Path:
    config = {**CONFIG, "num_hidden_layers": num_layers}
    tensors = adapter_tensors(config, rank=rank, seed=seed, modules=MODULES, gain=0.7)
    return write_adapter(folder, config, tensors=tensors, rank=rank, target_modules=MODULES, **says)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed in range(5):
        write(folder / f"a{seed}", seed, rank=2 + 3 * seed)
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[TinyServer]:
    flags = ("--lora", f"a0={root / 'a0'}", "--lora", f"a1={root / 'a1'}", "--lora-root", str(root), "--max-loras", "2")
    with tiny_server(*flags, "--admin-key", "boss-key-1", key="boss-key-1") as started:
        for seed in (2, 3, 4):
            assert load(started, f"a{seed}", root / f"a{seed}").status_code == 200
        yield started
        assert started.client.get("/v1/cache/check").json()["differences"] == []


def load(server: TinyServer, name: str, path: object, **fields: Any) -> Any:
    return server.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **fields})


def unload(server: TinyServer, name: str) -> Any:
    return server.client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def answer(server: TinyServer, model: str, **fields: Any) -> tuple[str, int]:
    """Text of an answer, and how many tokens of its prompt were cached."""
    response = server.complete(**{"model": model, "prompt": PROMPT, "max_tokens": 12, "cache_salt": model, **fields})
    assert response.status_code == 200, response.text
    body = response.json()
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def streaming(server: TinyServer, model: str, *, max_tokens: int) -> AbstractContextManager[httpx.Response]:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    return server.client.stream("POST", "/v1/completions", json=asked)


def test_more_adapters_than_slots_and_the_base_answer_together_as_they_do_alone(server: TinyServer) -> None:
    models = ["a0", "a1", "a2", "a3", "a4", "tiny"]
    alone = {model: answer(server, model)[0] for model in models}
    assert len(set(alone.values())) == len(models)
    with ThreadPoolExecutor(24) as pool:
        for _ in range(3):
            asked = models * 4
            texts = list(pool.map(lambda model: answer(server, model)[0], asked))
            assert texts == [alone[model] for model in asked]
    server.assert_alive()


def test_no_adapter_is_answered_from_the_cache_of_another(server: TinyServer) -> None:
    prompt = "another prompt, that nobody has asked before, which takes some pages as well"
    firsts = {model: answer(server, model, prompt=prompt, cache_salt="d01") for model in ("a0", "a1", "tiny")}
    assert [cached for _, cached in firsts.values()] == [0, 0, 0]
    for model, (text, _) in firsts.items():
        again, cached = answer(server, model, prompt=prompt, cache_salt="d01")
        assert again == text
        assert cached > 0
    assert len({text for text, _ in firsts.values()}) == 3


def test_a_name_that_is_loaded_anew_finds_nothing_in_the_cache(server: TinyServer, root: Path) -> None:
    folder = root / "changing"
    write(folder, 20)
    assert load(server, "changing", folder).status_code == 200
    before, _ = answer(server, "changing")
    write(folder, 21)
    assert load(server, "changing", folder, load_inplace=True).status_code == 200
    after, cached = answer(server, "changing")
    assert cached == 0
    assert after != before
    for _ in range(2):  # the same files: another loading all the same
        assert unload(server, "changing").status_code == 200
        assert load(server, "changing", folder).status_code == 200
        assert answer(server, "changing") == (after, 0)
    assert unload(server, "changing").status_code == 200


BAD = ("rank", "truncated", "no configuration", "another base", "matches nothing", "dora")


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_adapter_is_refused_when_it_is_loaded_and_hurts_nobody(server: TinyServer, root: Path, kind: str) -> None:
    folder = root / kind
    wide = {**CONFIG, "hidden_size": WIDTH + 8}
    match kind:
        case "rank":
            write(folder, 0, rank=65)
        case "another base":
            write_adapter(folder, wide)
        case "matches nothing":
            tensors = {name.replace("layers", "blocks"): each for name, each in adapter_tensors(CONFIG).items()}
            write_adapter(folder, CONFIG, tensors=tensors)
        case "dora":
            write(folder, 0, use_dora=True)
        case _:
            write(folder, 0)
    if kind == "truncated":
        weights = folder / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-64])
    if kind == "no configuration":
        (folder / "adapter_config.json").unlink()
    with streaming(server, "a0", max_tokens=60) as stream:
        lines = stream.iter_text()
        begun = next(lines)
        refused = load(server, "bad", folder)
        rest = "".join(lines)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"] == "adapter_error"
    assert "bad" not in [card["id"] for card in server.client.get("/v1/models").json()["data"]]
    text = texts_by_index(chunks(begun + rest))[0]
    assert text == answer(server, "a0", max_tokens=60)[0]
    assert server.complete(model="bad").status_code == 404


def test_loading_and_unloading_leave_streams_alone(server: TinyServer, root: Path) -> None:
    models = ["a0", "a1", "a2", "tiny"] * 2
    alone = {model: answer(server, model, max_tokens=100)[0] for model in models}
    is_over = threading.Event()
    statuses: list[int] = []

    def churn() -> None:
        while not is_over.is_set():
            statuses.append(load(server, "z", root / "a3").status_code)
            statuses.append(unload(server, "z").status_code)

    thread = threading.Thread(target=churn)
    thread.start()
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda model: answer(server, model, max_tokens=100, cache_salt="f04")[0], models))
    is_over.set()
    thread.join()
    assert texts == [alone[model] for model in models]
    assert set(statuses) == {200}
    assert unload(server, "z").status_code == 404
    server.assert_alive()


def test_an_answer_goes_on_when_its_adapter_is_unloaded(server: TinyServer, root: Path) -> None:
    assert load(server, "x", root / "a4").status_code == 200
    whole = answer(server, "x", max_tokens=200)[0]
    with streaming(server, "x", max_tokens=200) as stream:
        lines = stream.iter_text()
        begun = next(lines)
        assert unload(server, "x").status_code == 200
        assert server.complete(model="x").status_code == 404
        rest = "".join(lines)
    assert texts_by_index(chunks(begun + rest))[0] == whole


def test_the_choices_of_a_request_have_its_adapter(server: TinyServer) -> None:
    asked = {"model": "a1", "prompt": PROMPT, "max_tokens": 8, "n": 3, "temperature": 0}
    texts = {choice["text"] for choice in server.complete(**asked).json()["choices"]}
    assert texts == {answer(server, "a1", max_tokens=8)[0]}


def kill_engine(server: TinyServer, *, but_not: int | None = None) -> int:
    """Kill the engine, once there is another than the one that was killed before; returns its process id."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(StopIteration, psutil.Error):
            engine = server.engine
            if engine.pid != but_not and engine.status() != psutil.STATUS_ZOMBIE:
                engine.kill()
                return int(engine.pid)
        time.sleep(0.05)
    raise AssertionError("no engine came")


def test_answers_with_adapters_survive_their_engine(tmp_path: Path) -> None:
    """One adapter of `--lora`, one loaded later, one unloaded while its answer runs: all go on, with the same bits."""
    num_layers = 64
    for seed in range(3):
        write(tmp_path / f"a{seed}", seed, num_layers=num_layers)
    flags = ("--lora", f"a0={tmp_path / 'a0'}", "--lora-root", str(tmp_path))
    with tiny_server(*flags, model=deep_model(), kv_cache_memory="64MiB") as server:
        for name in ("a1", "a2"):
            assert load(server, name, tmp_path / name).status_code == 200
        models = ["a0", "a1", "a2", "tiny"]
        asked = {"max_tokens": 400, "ignore_eos": True}
        alone = {model: answer(server, model, **asked)[0] for model in models}
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(answer, server, model, **asked) for model in models]
            time.sleep(0.2)
            assert unload(server, "a2").status_code == 200
            first = kill_engine(server)
            texts = [each.result()[0] for each in running]
        assert texts == [alone[model] for model in models]
        assert [card["id"] for card in server.client.get("/v1/models").json()["data"]] == ["tiny", "a0", "a1"]
        # What is gone from the disk is gone with the engine that had it; its name is told so, and nothing else is hurt.
        shutil.rmtree(tmp_path / "a1")
        kill_engine(server, but_not=first)
        deadline = time.monotonic() + 30
        while (status := server.complete(model="a1").status_code) != 404:
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        assert answer(server, "a0", **asked)[0] == alone["a0"]
        assert [card["id"] for card in server.client.get("/v1/models").json()["data"]] == ["tiny", "a0"]


# -- in Python ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_llm_takes_adapters_by_name_and_by_request(root: Path, executor: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    with LLM(str(tiny_model()), lora=[f"a0={root / 'a0'}"], max_loras=2, kv_cache_memory="1MiB", threads=1,
             executor=executor) as llm:  # fmt: skip
        one = LoRARequest("a1", 1, str(root / "a1"))
        [base] = llm.generate(PROMPT, params)
        [first] = llm.generate(PROMPT, params, lora_request="a0")
        [second] = llm.generate(PROMPT, params, lora_request=one)
        assert len({each.outputs[0].text for each in (base, first, second)}) == 3
        assert second.num_cached_tokens == 0
        together = llm.generate([PROMPT] * 3, params, lora_request=["a0", None, one])
        assert [each.outputs[0].text for each in together] == [each.outputs[0].text for each in (first, base, second)]
        assert "".join(news.text for news in llm.stream(PROMPT, params, lora_request="a0")) == first.outputs[0].text
        assert llm.list_loras() == ["a0", "a1"]
        llm.load_lora("a0", root / "a1", load_inplace=True)
        assert llm.generate(PROMPT, params, lora_request="a0")[0].outputs[0].text == second.outputs[0].text
        llm.unload_lora("a0")
        with pytest.raises(ModelNotFoundError, match="'a0' does not exist"):
            llm.generate(PROMPT, params, lora_request="a0")
        with pytest.raises(InvalidParameterError, match="was loaded from"):
            llm.generate(PROMPT, params, lora_request=LoRARequest("a1", 1, str(root / "a2")))
        with pytest.raises(InvalidParameterError, match="3 prompts and 2 lora_requests"):
            llm.generate([PROMPT] * 3, params, lora_request=["a1", None])
        with pytest.raises(InvalidParameterError, match=r"lora_request has 3 \(int\)"):
            llm.generate(PROMPT, params, lora_request=3)  # type: ignore[arg-type]
        with pytest.raises(AdapterError, match="there is no such folder"):
            llm.load_lora("gone", root / "gone")


async def test_async_llm_loads_what_is_used_first_once(root: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8)
    one = LoRARequest("a1", 1, root / "a1")
    async with AsyncLLM(str(tiny_model()), kv_cache_memory="1MiB", threads=1) as llm:

        async def text(lora: LoRARequest | str | None) -> str:
            return "".join([news.text async for news in llm.generate(PROMPT, params, lora_request=lora)])

        base, first, second = await asyncio.gather(text(None), text(one), text(one))
        assert first == second != base
        assert await text("a1") == first
        with pytest.raises(InvalidParameterError, match="was loaded from"):
            await text(LoRARequest("a1", 1, root / "a2"))
        await llm.load_lora("a1", root / "a2", load_inplace=True)
        assert await text("a1") not in {base, first}
        await llm.unload_lora("a1")
        with pytest.raises(ModelNotFoundError):
            await text("a1")
        with pytest.raises(AdapterError, match="there is no such folder"):
            await text(LoRARequest("b", 1, root / "gone"))


def test_what_cannot_be_loaded_at_start_ends_the_start(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora 'x=.*gone' cannot be loaded: adapter 'x': .*there is no such folder"):
        LLM(str(tiny_model()), lora=[f"x={root / 'gone'}"], kv_cache_memory="1MiB")
    with pytest.raises(ConfigError, match="rank 8 is more than max_lora_rank, 4"):
        LLM(str(tiny_model()), lora=[f"x={root / 'a2'}"], max_lora_rank=4, kv_cache_memory="1MiB")
    with pytest.raises(ConfigError, match=r"lora \(from argument\) has 'x'; it must be NAME=PATH"):
        LLM(str(tiny_model()), lora=["x"])
