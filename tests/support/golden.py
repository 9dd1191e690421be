"""Run a checkpoint through the reference executor, request by request, without a scheduler.

One request owns pages 0, 1, 2, ... of every group. A prompt may be cut into chunks; after it, tokens are generated one
at a time, so that both ways into the KV store are walked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trivium.base.intmath import ceil_div
from trivium.models import build_graph, kv_spec, parse_config
from trivium.runtime.reference import ReferenceExecutor
from trivium.schedule.step import Step
from trivium.weights.bind import bind_parameters
from trivium.weights.checkpoint import open_checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.config.model import ModelConfig

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
MODELS = GOLDEN / "models"
PAGE_LEN = 16


@dataclass(frozen=True, slots=True)
class GoldenAnswer:
    """What transformers said of one prompt; see `tools/make_goldens.py`."""

    prompt: list[int]
    reach: int
    rows: list[int]
    logits: NDArray[np.float32]
    """[rows, V]."""
    greedy: list[int]


def golden_answers(directory: Path) -> list[GoldenAnswer]:
    """Read a golden model's answers."""
    with np.load(directory / "answers.npz") as arrays:
        count = sum(name.startswith("prompt_") for name in arrays.files)
        return [
            GoldenAnswer(
                prompt=arrays[f"prompt_{index}"].tolist(),
                reach=int(arrays[f"reach_{index}"]),
                rows=arrays[f"rows_{index}"].tolist(),
                logits=arrays[f"logits_{index}"],
                greedy=arrays[f"greedy_{index}"].tolist(),
            )
            for index in range(count)
        ]


def load_executor(
    path: Path, *, max_tokens: int = 128, change: Callable[[ModelConfig], ModelConfig] | None = None, **options: Any
) -> ReferenceExecutor:
    """Load a directory or file into a reference executor with room for one request of `max_tokens`.

    `change` may alter the configuration, to see what a mistake would look like.
    """
    checkpoint = open_checkpoint(path)
    config = parse_config(checkpoint.hf_config)
    if change is not None:
        config = change(config)
    graph = build_graph(config)
    spec = kv_spec(config, page_len=PAGE_LEN, element_bytes=4)
    parameters = bind_parameters(checkpoint, graph.param_shapes(), config)
    pages = tuple(ceil_div(max_tokens, PAGE_LEN) for _ in spec.groups)
    executor = ReferenceExecutor(graph, parameters, config, spec, pages, max_logit_rows=max_tokens, **options)
    checkpoint.close()
    return executor


def forward(
    executor: ReferenceExecutor,
    tokens: Sequence[int],
    start: int,
    reach: int,
    rows: Sequence[int],
    *,
    slot: int = -1,
) -> NDArray[np.float32]:
    """Run tokens at positions `start`, `start` + 1, ... of the one request; return the logits of `rows`, [rows, V].

    `slot` is that of the request's adapter.
    """
    end = start + len(tokens)
    pages = np.arange(ceil_div(end, PAGE_LEN), dtype=np.int32)[None, :]
    step = Step(
        token_ids=np.array(tokens, np.int32),
        positions=np.arange(start, end, dtype=np.int32),
        starts=np.array([0, len(tokens)], np.int32),
        kv_lens=np.array([end], np.int32),
        reaches=np.array([reach], np.int32),
        page_tables=tuple(pages for _ in executor.num_pages),
        logit_rows=np.array(rows, np.int32),
        mask_row=np.full(len(rows), -1, np.int32),
        adapter_slot=np.array([slot], np.int32),
        state_slot=np.array([-1], np.int32),
    )
    executor.forward(step)
    return np.array(executor.logits)


def prompt_logits(
    executor: ReferenceExecutor, prompt: Sequence[int], reach: int, *, chunk_len: int = 1 << 30, slot: int = -1
) -> NDArray[np.float32]:
    """[prompt, V]: run the prompt in chunks of `chunk_len`."""
    pieces = []
    for start in range(0, len(prompt), chunk_len):
        chunk = prompt[start : start + chunk_len]
        pieces.append(forward(executor, chunk, start, reach, range(len(chunk)), slot=slot))
    return np.concatenate(pieces)


def generate_greedily(
    executor: ReferenceExecutor,
    prompt: Sequence[int],
    reach: int,
    num_tokens: int,
    *,
    chunk_len: int = 1 << 30,
    slot: int = -1,
) -> list[int]:
    """Return the `num_tokens` most likely tokens after the prompt, each drawn after the one before."""
    last = np.zeros(0, np.float32)
    for start in range(0, len(prompt), chunk_len):
        chunk = prompt[start : start + chunk_len]
        last = forward(executor, chunk, start, reach, [len(chunk) - 1], slot=slot)[0]
    drawn = [int(last.argmax())]
    while len(drawn) < num_tokens:
        position = len(prompt) + len(drawn) - 1
        drawn.append(int(forward(executor, drawn[-1:], position, reach, [0], slot=slot)[0].argmax()))
    return drawn


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
