"""The reference executor: the model it computes, its lifecycle, and how it reads."""

from __future__ import annotations

import numpy as np
import pytest

from support.tiny_steps import ExactKernels, Story, random_parameters, tiny_config, tiny_graph, tiny_spec
from trivium.base.errors import ConfigError, InternalError
from trivium.config.model import ModelConfig
from trivium.config.sampling import SamplingParams
from trivium.ir.rope import rope_angles
from trivium.runtime import inputs
from trivium.runtime.executor import Executor
from trivium.runtime.reference import ReferenceExecutor
from trivium.sampling.batch import SampleRow

TOKENS = [5, 60, 0, 17, 17, 3, 42, 9, 33, 21, 8]


def build(config: ModelConfig, *, page_len: int = 4, has_embeds: bool = False) -> tuple[ReferenceExecutor, Story]:
    graph, spec = tiny_graph(config, has_embeds=has_embeds), tiny_spec(config, page_len=page_len)
    parameters = random_parameters(graph)
    executor = ReferenceExecutor(graph, parameters, config, spec, (32,), max_logit_rows=64, kernels=ExactKernels())
    return executor, Story(spec, [list(range(32))])


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight


def rotate(x: np.ndarray, config: ModelConfig) -> np.ndarray:
    count = len(x)
    table = rope_angles(config.layers[0].rope, np.arange(count), np.full(count, count)).astype(np.float64)
    turned = (x[..., :4] + 1j * x[..., 4:]) * (table[:, 0] + 1j * table[:, 1])[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def dense_logits(config: ModelConfig, tokens: list[int]) -> np.ndarray:
    """The tiny model over one whole sequence in float64, with a full score matrix and no KV store."""
    w = {name: array.astype(np.float64) for name, array in random_parameters(tiny_graph(config)).items()}
    x, count = w["embed_tokens.weight"][tokens], len(tokens)
    ages = np.arange(count)[:, None] - np.arange(count)[None, :]
    for layer in range(3):
        at, window = f"layers.{layer}.", config.layers[layer].window
        qkv = norm(x, w[at + "input_layernorm.weight"]) @ w[at + "qkv.weight"].T + w[at + "qkv.bias"]
        q, k, v = (part.reshape(count, -1, 8) for part in np.split(qkv, [32, 48], axis=-1))
        q, k = rotate(norm(q, w[at + "q_norm.weight"]), config), rotate(k, config)
        scores = np.einsum("thd,uhd->htu", q, np.repeat(k, 2, axis=1)) * 8**-0.5
        if config.attention_softcap is not None:
            scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
        scores = np.where((ages < 0) | (ages >= (window or count)), -np.inf, scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = np.einsum("htu,uhd->thd", shares, np.repeat(v, 2, axis=1)).reshape(count, 32)
        x = x + attended @ w[at + "o_proj.weight"].T
        normed = norm(x, w[at + "post.weight"])
        gate, up = normed @ w[at + "gate.weight"].T, normed @ w[at + "up.weight"].T
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        active = gelu if layer == 1 else gate / (1 + np.exp(-gate))
        x = x + (active * up) @ w[at + "down.weight"].T
    return 30.0 * np.tanh(norm(x, w["norm.weight"]) @ w["embed_tokens.weight"].T * 2.0 / 30.0)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (None, 2.0)])
def test_logits_are_the_models_in_float64(window: int | None, softcap: float | None) -> None:
    config = tiny_config(window=window, softcap=softcap)
    executor, tale = build(config)
    request = tale.start(TOKENS)
    executor.forward(tale.step([(request, 6)]))
    first = executor.logits.copy()
    executor.forward(tale.step([(request, 5)]))
    found = np.concatenate([first, executor.logits])
    np.testing.assert_allclose(found, dense_logits(config, TOKENS), rtol=2e-5, atol=2e-5)


def test_only_wanted_rows_are_computed_and_none_may_be_wanted() -> None:
    executor, tale = build(tiny_config())
    request = tale.start(TOKENS)
    executor.forward(tale.step([(request, 4)], rows="none"))
    assert executor.logits.shape == (0, 61)
    executor.forward(tale.step([(request, 7)], rows="last"))
    np.testing.assert_allclose(executor.logits[0], dense_logits(tiny_config(), TOKENS)[-1], rtol=2e-5, atol=2e-5)


def test_given_embeddings_replace_their_rows_only() -> None:
    executor, tale = build(tiny_config(), has_embeds=True)
    table = random_parameters(tiny_graph(tiny_config()))["embed_tokens.weight"]
    executor.forward(tale.step([(tale.start(TOKENS), 11)]))
    expected = executor.logits.copy()
    # Token 0 stands in for token 17, whose embedding is given.
    step = tale.step([(tale.start([0 if token == 17 else token for token in TOKENS]), 11)])
    step.embeds = np.full((11, 16), np.nan, np.float32)
    step.embeds[3:5] = table[17]
    executor.forward(step)
    np.testing.assert_array_equal(executor.logits, expected)


def test_a_trace_names_the_first_value_in_which_two_models_differ() -> None:
    config = tiny_config()
    graph, spec = tiny_graph(config), tiny_spec(config, page_len=4)
    traces: list[dict[str, np.ndarray]] = []
    for edited in (None, "layers.1.gate.weight"):
        parameters = random_parameters(graph)
        if edited:
            parameters[edited] = parameters[edited] * np.float32(1.5)
        executor = ReferenceExecutor(graph, parameters, config, spec, (8,), max_logit_rows=16, kernels=ExactKernels())
        seen: dict[str, np.ndarray] = {}
        tale = Story(spec, [list(range(8))])
        executor.forward(
            tale.step([(tale.start(TOKENS), 11)]), trace=lambda name, array, to=seen: to.update({name: array})
        )
        traces.append(seen)
    differing = [
        name for name in traces[0] if traces[0][name] is not None and (traces[0][name] != traces[1][name]).any()
    ]
    node = next(node for node in graph.nodes if node.outputs[0].name == differing[0])
    assert node.inputs[1] == "layers.1.gate.weight"


def test_sampling_takes_one_row_per_wanted_row() -> None:
    executor, tale = build(tiny_config())
    executor.forward(tale.step([(tale.start(TOKENS), 11)], rows="last"))
    params = SamplingParams(temperature=0.0, seed=1, logprobs_mode="raw")
    row = SampleRow(params=params, choice=0, position=11, tokens=TOKENS, prompt_len=11)
    assert executor.sample([row]).token_ids.tolist() == [int(executor.logits[0].argmax())]
    with pytest.raises(InternalError, match="sample got 2 rows; the last step wanted 1"):
        executor.sample([row, row])


def test_a_step_chooses_its_mask_rows() -> None:
    executor, tale = build(tiny_config())
    step = tale.step([(tale.start(TOKENS), 11)], rows="last")
    step.mask_row = np.array([1], np.int32)
    executor.forward(step)
    masks = np.zeros((2, 2), np.uint32)
    masks[1, 1] = 1 << 3
    params = SamplingParams(temperature=0.0, seed=1, logprobs_mode="raw")
    row = SampleRow(params=params, choice=0, position=11, tokens=TOKENS, prompt_len=11)
    assert executor.sample([row], masks).token_ids.tolist() == [35]


def test_a_closed_executor_refuses_to_run() -> None:
    executor, tale = build(tiny_config())
    step = tale.step([(tale.start(TOKENS), 11)])
    executor.close()
    with pytest.raises(InternalError, match="the executor is closed"):
        executor.forward(step)


def test_it_is_an_executor_and_says_what_it_holds() -> None:
    executor, tale = build(tiny_config())
    contract: Executor = executor
    assert contract.kv_spec == tale.spec
    assert contract.num_pages == (32,)
    assert executor.weight_bytes > 0


def test_an_unknown_array_library_device_is_a_config_error() -> None:
    config = tiny_config()
    graph = tiny_graph(config)
    with pytest.raises(ConfigError, match="torch"):
        ReferenceExecutor(
            graph, random_parameters(graph), config, tiny_spec(config, page_len=4), (8,),
            max_logit_rows=1, array_library="torch", device="abacus",
        )  # fmt: skip


def test_every_token_is_in_exactly_one_read_however_requests_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, tale = build(tiny_config(), page_len=2)
    lengths = [1, 9, 2, 3, 9, 1]
    requests = [tale.start(list(range(length))) for length in lengths]
    step = tale.step([(request, len(request.tokens)) for request in requests])
    for keys_at_once in (1, 10, 4096):
        monkeypatch.setattr(inputs, "KEYS_AT_ONCE", keys_at_once)
        memory = inputs.StepMemory(step, executor.store, executor._library)
        reads = list(memory.reads(0, None))
        rows = np.concatenate([np.arange(25)[read.rows] for read in reads])
        assert sorted(rows.tolist()) == list(range(25))
        assert len(reads) == (6 if keys_at_once == 1 else len(reads))
        for read in reads:
            np.testing.assert_array_equal(step.positions[read.rows], read.sight.positions.reshape(-1))
            assert read.keys.shape[2] > read.sight.positions.max() - read.sight.first.min()
