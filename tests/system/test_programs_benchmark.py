"""Every program of the examples finds what it could have found, and answers as it does without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs.completions import Completions
from benchmarks.programs.loads import LOADS
from benchmarks.programs.player import Player, count, play
from support.server_process import ServerProcess
from support.tiny_model import write_tiny_model
from trivium import LLM
from trivium.assembly import load_frontend
from trivium.config.resolve import options_from
from trivium.lang.backends.choice import backend_of, set_default_backend

LEAST_SHARE = 0.99
SALT = [40, 41]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for long prompts, of which each letter is a token."""
    return write_tiny_model(tmp_path_factory.mktemp("programs") / "tiny", max_positions=8192)


@pytest.fixture(scope="module")
def engines(model: Path) -> Iterator[dict[bool, LLM]]:
    """With a prefix cache, and without."""
    made = {
        shares: LLM(str(model), kv_cache_memory="16MiB", threads=1, max_num_seqs=16, prefix_cache=shares)
        for shares in (True, False)
    }
    yield made
    set_default_backend(None)
    for llm in made.values():
        llm.close()


def played(llm: LLM, name: str) -> tuple[Player, list[str], int]:
    """Run a small load; returns what was asked, the texts, and the forward passes."""
    llm.shared_loop.call("flush")
    before: Any = llm.shared_loop.call("stats")["steps_total"]
    player = Player(backend_of(llm), SALT)
    states, _ = play(LOADS[name].runs(1, is_small=True), player, LOADS[name].programs)
    after: Any = llm.shared_loop.call("stats")["steps_total"]
    assert llm.shared_loop.call("check") == {"differences": []}
    return player, [state.text() for state in states], after - before


@pytest.mark.parametrize("name", LOADS)
def test_a_program_finds_what_it_could_and_answers_as_without_a_cache(name: str, engines: dict[bool, LLM]) -> None:
    sharing, texts, _ = played(engines[True], name)
    alone, texts_alone, _ = played(engines[False], name)

    found, nothing = count(sharing.events), count(alone.events)
    assert found.share_of_optimum >= LEAST_SHARE
    assert found.cached_tokens <= found.reusable_tokens
    assert found.hit_rate > 0.3
    assert nothing.cached_tokens == 0
    assert texts == texts_alone
    assert sorted(call.prompt for call in sharing.calls) == sorted(call.prompt for call in alone.calls)


def test_a_server_of_completions_gets_the_same_lengths(model: Path, engines: dict[bool, LLM]) -> None:
    frontend = load_frontend(options_from({"model": str(model)}))
    own, _, _ = played(engines[True], "react")
    flags = ("--kv-cache-memory", "16MiB", "--threads", "1", "--max-model-len", "8192")
    with ServerProcess(model, *flags) as server:
        remote = Completions(server.url, frontend, [70], takes_constraints=True)
        try:
            for name in ("react", "select", "json"):
                player = Player(remote, SALT)
                play(LOADS[name].runs(1, is_small=True), player, LOADS[name].programs)
                counts = count(player.events)
                assert 0 < counts.cached_tokens <= counts.prompt_tokens
                if name == "react":  # observations, which depend on what is written, differ by letters
                    expected = count(own.events)
                    assert counts.num_calls == expected.num_calls
                    assert counts.output_tokens == expected.output_tokens
                    assert counts.prompt_tokens == pytest.approx(expected.prompt_tokens, rel=0.05)
        finally:
            set_default_backend(None)
            remote.close()
