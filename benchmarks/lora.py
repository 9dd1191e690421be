"""What LoRA adapters cost a step of the native executor, and what loading one beside running answers costs them.

    python benchmarks/lora.py [MODEL] [WEIGHTS]

Adapters of every projection of every layer, drawn; decodes at a context of 192 tokens, and a prefill of 512. Every step
of a round is timed once, round after round, so that what the machine does otherwise falls on all alike; printed is the
median, and beside it the ratio to the base's step of the same round. Then loading: steps of 8 decodes run on while an
adapter is read, checked and prepared in a thread beside them; printed are the median and the longest step with and
without.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from steps import asked_options

from trivium.assembly.adapters import make_adapters
from trivium.assembly.model import OpenModel, open_model
from trivium.assembly.native import NativeParts
from trivium.base.intmath import ceil_div
from trivium.kernels import native
from trivium.runtime.rehearsal import Part, build_step
from trivium.schedule.adapter_slots import AdapterSlots
from trivium.weights.peft import LowRank

if TYPE_CHECKING:
    from trivium.engine.adapters import EngineAdapters
    from trivium.runtime.native import NativeExecutor
    from trivium.schedule.step import Step

ROUNDS = 25
KV_LEN = 192
RANKS = (8, 64)
NUM_ADAPTERS = 16
LOADING_BATCH = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A step, and how its requests are spread over adapters."""

    label: str
    num_requests: int
    num_tokens: int
    """Of each request."""
    slots: tuple[int, ...]
    """Of its requests, in turn; -1: the base."""


def cases() -> list[Case]:
    """Return the steps of a round; those of the base come first in their group."""
    found = []
    for num_requests, num_tokens in ((1, 1), (16, 1), (17, 1), (1, 512)):
        what = f"prefill {num_tokens}" if num_tokens > 1 else f"decode {num_requests}"
        found.append(Case(f"{what}, base", num_requests, num_tokens, (-1,)))
        found.append(Case(f"{what}, 1 adapter", num_requests, num_tokens, (0,)))
        if num_requests >= NUM_ADAPTERS:
            found.append(Case(f"{what}, 4 adapters", num_requests, num_tokens, tuple(range(4))))
        if num_requests == NUM_ADAPTERS:
            found.append(Case(f"{what}, 16 adapters", num_requests, num_tokens, tuple(range(NUM_ADAPTERS))))
        if num_requests > NUM_ADAPTERS:
            found.append(Case(f"{what}, 16 adapters and base", num_requests, num_tokens, (*range(NUM_ADAPTERS), -1)))
    return found


def step_of(case: Case, executor: NativeExecutor, vocab_size: int) -> Step:
    """Build a case's step; its requests have pages of their own."""
    kv_len = max(KV_LEN, case.num_tokens)
    tokens = np.random.default_rng(0).integers(0, vocab_size, kv_len).astype(np.int32)
    per_request = ceil_div(kv_len, executor.kv_spec.page_len)
    parts = [
        Part(tokens=tokens, start=kv_len - case.num_tokens, end=kv_len, first_page=number * per_request)
        for number in range(case.num_requests)
    ]
    slots = [case.slots[number % len(case.slots)] for number in range(case.num_requests)]
    return replace(build_step(parts, executor.kv_spec), adapter_slot=np.array(slots, np.int32))


def seconds_of(executor: NativeExecutor, step: Step) -> float:
    """Run a step and say how long it took."""
    began_s = time.perf_counter()
    executor.forward(step)
    return time.perf_counter() - began_s


def drawn(shapes: dict[str, tuple[int, int]], rank: int, seed: int) -> dict[str, LowRank]:
    """Draw an adapter of every product but the head."""
    random = np.random.default_rng(seed)
    return {
        name: LowRank(
            random.standard_normal((rank, depth), np.float32) / np.float32(depth**0.5),
            np.float32(0.01) * random.standard_normal((num_cols, rank), np.float32),
            2.0,
        )
        for name, (num_cols, depth) in shapes.items()
        if name.startswith("layers.")
    }


def time_rounds(executor: NativeExecutor, vocab_size: int) -> list[tuple[Case, float, float]]:
    """Return each case's median seconds, and the median ratio to the base's step of the same round."""
    known = cases()
    steps = [step_of(case, executor, vocab_size) for case in known]
    timings = np.array([[seconds_of(executor, step) for step in steps] for _ in range(ROUNDS + 2)])[2:]
    found, base = [], 0
    for index, case in enumerate(known):
        base = index if case.slots == (-1,) else base
        ratio = float(np.median(timings[:, index] / timings[:, base]))
        found.append((case, float(np.median(timings[:, index])), ratio))
    return found


def write(folder: Path, adapter: dict[str, LowRank], rank: int) -> None:
    """Write an adapter as peft does."""
    tensors = {}
    for name, one in adapter.items():
        module = f"base_model.model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = one.a, one.b
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(f'{{"peft_type": "LORA", "r": {rank}, "lora_alpha": {2 * rank}}}')


def time_loading(
    executor: NativeExecutor, adapters: EngineAdapters, folder: Path, vocab_size: int
) -> tuple[list[float], list[float], float]:
    """Return the seconds of steps with nothing beside them, and while an adapter loads; and of the load."""
    step = step_of(Case("", LOADING_BATCH, 1, (-1,)), executor, vocab_size)
    alone = [seconds_of(executor, step) for _ in range(200)]
    beside, load_seconds = [], []
    for generation in range(1, 6):
        load = adapters.submit("loaded", str(folder), generation)
        while not load.done():
            beside.append(seconds_of(executor, step))
        load_seconds.append(load.result().load_seconds)
        adapters.unload(generation)
    return alone, beside, float(np.median(load_seconds))


def measure(options: Any, model: OpenModel) -> None:
    """Time steps and loads, and print."""
    parts = NativeParts(options, model)
    vocab_size = parts.plan.sizes.vocab_size
    pages = (NUM_ADAPTERS + 1) * ceil_div(512, parts.kv_spec.page_len)
    executor = parts.make((pages,) * len(parts.kv_spec.groups), lambda *_: None)
    plain = [seconds for case, seconds, _ in time_plain(executor, vocab_size) if case.slots == (-1,)]
    print("base without any adapter loaded:", ", ".join(f"{1e3 * seconds:.2f} ms" for seconds in plain))
    for rank in RANKS:
        shapes = dict(executor.adapter_shapes)
        for slot in range(NUM_ADAPTERS):
            executor.load_adapter(slot, drawn(shapes, rank, slot))
        print(f"\nrank {rank}")
        for case, seconds, ratio in time_rounds(executor, vocab_size):
            print(f"{case.label:<34} {1e3 * seconds:8.2f} ms   {ratio:5.2f}")
        for slot in range(NUM_ADAPTERS):
            executor.unload_adapter(slot)
        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch), drawn(shapes, rank, 99), rank)
            adapters = make_adapters(options, model, executor, AdapterSlots(1))
            alone, beside, load_s = time_loading(executor, adapters, Path(scratch), vocab_size)
        shown = [
            f"median {1e3 * np.median(times):.2f} ms, longest {1e3 * max(times):.2f} ms" for times in (alone, beside)
        ]
        print(f"decode {LOADING_BATCH}, nothing beside: {shown[0]}")
        print(f"decode {LOADING_BATCH}, an adapter loading ({1e3 * load_s:.0f} ms): {shown[1]}")


def time_plain(executor: NativeExecutor, vocab_size: int) -> list[tuple[Case, float, float]]:
    """Time the base's steps only."""
    known = [case for case in cases() if case.slots == (-1,)]
    steps = [step_of(case, executor, vocab_size) for case in known]
    timings = np.array([[seconds_of(executor, step) for step in steps] for _ in range(ROUNDS + 2)])[2:]
    return [(case, float(seconds), 1.0) for case, seconds in zip(known, np.median(timings, axis=0), strict=True)]


if __name__ == "__main__":
    print(f"{native.describe()}")
    given = asked_options(max_num_seqs=128)
    measure(given, open_model(given))
