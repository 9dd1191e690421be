"""The native executor's law, with adapters: a request's logits are the same bits alone, in company with other adapters
and with none, in chunks, on any number of threads, in every weight format; and a request without an adapter
has the bits that it has where there are no adapters at all."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.drawn_adapters import drawn_adapter, native_for, reference_for, with_adapters
from support.native import ARITHMETIC
from support.native import two_threads as two_threads
from support.tiny_checkpoints import hub_config
from support.tiny_steps import Story, tiny_config, tiny_graph, tiny_spec
from trivium.kernels import native
from trivium.models import build_graph, kv_spec, parse_config
from trivium.runtime.native import NativeExecutor

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

NUM_PAGES = 200
RANKS = (1, 4, 18)
"""Of the adapters in slots 0, 1 and 2; the last one leaves half of the products alone."""
CONFIG = tiny_config(window=5, softcap=4.0)
GRAPH = tiny_graph(CONFIG)
SPEC = tiny_spec(CONFIG, page_len=16)


@cache
def executor(arithmetic: tuple[str, str], *, has_adapters: bool = True) -> NativeExecutor:
    weights, kv = arithmetic
    made = native_for(GRAPH, CONFIG, SPEC, NUM_PAGES, weights=weights, kv=kv)  # type: ignore[arg-type]
    for slot, rank in enumerate(RANKS if has_adapters else ()):
        made.load_adapter(slot, drawn_adapter(GRAPH, slot, rank, share=0.5 if slot == 2 else 1.0))
    return made


def tokens_of(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 61, length).tolist()


@cache
def alone(arithmetic: tuple[str, str], slot: int, seed: int, length: int) -> np.ndarray:
    """Logits [length, V] of a request that runs alone and whole; without adapter, where none was ever loaded."""
    lonely = Story(SPEC, [list(range(NUM_PAGES))])
    model = executor(arithmetic, has_adapters=slot >= 0)
    step = lonely.step([(lonely.start(tokens_of(seed, length)), length)])
    model.forward(with_adapters(step, [slot]))
    rows = model.logits.copy()
    assert np.isfinite(rows).all()
    return rows


requests = st.lists(
    st.tuples(st.sampled_from([-1, -1, 0, 1, 2]), st.integers(0, 5), st.integers(1, 150)), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(arithmetic=st.sampled_from(ARITHMETIC), asked=requests, threads=st.integers(1, 3), data=st.data())
def test_company_chunks_and_threads_change_no_bit(
    arithmetic: tuple[str, str], asked: list[tuple[int, int, int]], threads: int, data: st.DataObject
) -> None:
    expected = [alone(arithmetic, *each) for each in asked]
    native.set_num_threads(threads)
    tale = Story(SPEC, [list(range(NUM_PAGES))])
    running = [tale.start(tokens_of(seed, length)) for _, seed, length in asked]
    rows: list[list[np.ndarray]] = [[] for _ in running]
    while unfinished := [idx for idx, each in enumerate(running) if each.computed_len < len(each.tokens)]:
        chosen = data.draw(st.permutations(unfinished))[: data.draw(st.integers(1, len(unfinished)))]
        parts, room = [], 400
        for idx in chosen:
            left = min(len(running[idx].tokens) - running[idx].computed_len, room)
            count = min(left, data.draw(st.sampled_from([1, 7, 64, 400])))
            if count:
                parts.append((idx, count))
                room -= count
        step = tale.step([(running[idx], count) for idx, count in parts])
        executor(arithmetic).forward(with_adapters(step, [asked[idx][0] for idx, _ in parts]))
        ends = np.cumsum([count for _, count in parts])[:-1]
        for (idx, _), piece in zip(parts, np.split(executor(arithmetic).logits, ends), strict=True):
            rows[idx].append(piece.copy())
    for wanted, pieces in zip(expected, rows, strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), wanted, strict=True)


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids="/".join)
def test_a_request_without_adapter_has_the_bits_of_the_base_program_beside_all_others(
    arithmetic: tuple[str, str],
) -> None:
    slots, lengths = [0, -1, 1, -1, 2, -1], [40, 33, 1, 90, 64, 1]
    expected = [
        alone(arithmetic, slot, seed, length) for seed, (slot, length) in enumerate(zip(slots, lengths, strict=True))
    ]
    for threads in (1, 2, 3):
        native.set_num_threads(threads)
        tale = Story(SPEC, [list(range(NUM_PAGES))])
        parts = [(tale.start(tokens_of(seed, length)), length) for seed, length in enumerate(lengths)]
        executor(arithmetic).forward(with_adapters(tale.step(parts), slots))
        found = np.split(executor(arithmetic).logits, np.cumsum(lengths)[:-1])
        for slot, rows, wanted in zip(slots, found, expected, strict=True):
            np.testing.assert_array_equal(rows.view(np.uint32), wanted.view(np.uint32), err_msg=f"slot {slot}")


@pytest.mark.parametrize("arithmetic", ARITHMETIC, ids="/".join)
def test_only_wanted_rows_give_the_same_bits(arithmetic: tuple[str, str]) -> None:
    tale = Story(SPEC, [list(range(NUM_PAGES))])
    slots, lengths = [2, -1, 0], [20, 7, 31]
    parts = [(tale.start(tokens_of(seed, length)), length) for seed, length in enumerate(lengths)]
    step = with_adapters(tale.step(parts, rows="last"), slots)
    step.logit_rows = step.logit_rows[[0, 2]]  # the middle one wants none
    step.mask_row = step.mask_row[:2]
    executor(arithmetic).forward(step)
    for row, index in enumerate((0, 2)):
        wanted = alone(arithmetic, slots[index], index, lengths[index])[-1]
        np.testing.assert_array_equal(executor(arithmetic).logits[row], wanted)


ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    weights=st.sampled_from(["f32", "i8_g32"]),
    width=st.integers(1, 60),
    ffn_width=st.integers(1, 120),
    num_kv_heads=st.integers(1, 2),
    head_width=st.sampled_from([8, 8, 32, 64]),
    vocab_size=st.integers(2, 200),
    ranks=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    share=st.sampled_from([0.1, 0.6, 1.0]),
    seed=st.integers(0, 1000),
)
def test_models_and_adapters_of_any_size(  # noqa: PLR0913, PLR0917 - what is drawn
    architecture: str,
    weights: str,
    width: int,
    ffn_width: int,
    num_kv_heads: int,
    head_width: int,
    vocab_size: int,
    ranks: list[int],
    share: float,
    seed: int,
) -> None:
    changes = {
        "hidden_size": 2 * width,
        "intermediate_size": ffn_width,
        "num_hidden_layers": 1,
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": 2 * num_kv_heads,
        "head_dim": head_width,
        "vocab_size": vocab_size,
    }
    config = parse_config(hub_config(architecture, **changes))
    graph = build_graph(config)
    spec = kv_spec(config, page_len=16, element_bytes=4)
    ours = native_for(graph, config, spec, 12, weights=weights)
    theirs = reference_for(graph, config, spec, 12)
    for slot, rank in enumerate(ranks):
        adapter = drawn_adapter(graph, seed + slot, rank, share=share)
        ours.load_adapter(slot, adapter)
        theirs.load_adapter(slot, adapter)
    rng = np.random.default_rng(seed)
    slots = [-1, *range(len(ranks)), 0]
    texts = [rng.integers(0, vocab_size, int(rng.integers(1, 20))).tolist() for _ in slots]
    together = Story(spec, [list(range(12)) for _ in spec.groups])
    step = with_adapters(together.step([(together.start(text), len(text)) for text in texts]), slots)
    ours.forward(step)
    rows = ours.logits.copy()
    if weights == "f32":
        theirs.forward(step)
        np.testing.assert_allclose(rows, theirs.logits, rtol=0, atol=1e-4)
    ends = np.cumsum([len(text) for text in texts])[:-1]
    for slot, text, expected in zip(slots, texts, np.split(rows, ends), strict=True):
        lonely = Story(spec, [list(range(12)) for _ in spec.groups])
        ours.forward(with_adapters(lonely.step([(lonely.start(text), len(text))]), [slot]))
        np.testing.assert_array_equal(ours.logits, expected)
