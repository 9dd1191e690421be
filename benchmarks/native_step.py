"""Forward steps of the native executor, without sampling or scheduler: decode at several batch sizes, and a prefill.

    python benchmarks/native_step.py [MODEL] [WEIGHTS]

The context of decodes is 192 tokens. Prints the machine's own limits, read in the same process, then milliseconds and
tokens per second of each step (sum of the medians of its instructions).
"""

from __future__ import annotations

from steps import asked_options, name_of

from trivium.assembly.model import open_model
from trivium.assembly.native import NativeParts
from trivium.kernels import native
from trivium.plan.cost import chunk, decode
from trivium.runtime.rehearsal import pages_needed, time_instructions

LOADS = (*(decode(batch, kv_len=192) for batch in (1, 4, 16, 64, 128)), chunk(512))


def main() -> None:
    """Measure and print."""
    options = asked_options(max_num_seqs=128)
    module = native.load()
    memory, _, int8, bf16, _ = module.machine_limits() if module else (0, 0, 0, 0, 0)
    print(f"{native.describe()}; stream {memory / 1e9:.1f} GB/s, int8 {int8 / 1e9:.0f} GOPS, bf16 {bf16 / 1e9:.0f}")
    parts = NativeParts(options, open_model(options))
    spec = parts.kv_spec
    executor = parts.make(pages_needed(LOADS, spec), lambda *_: None)
    vocab_size = parts.plan.sizes.vocab_size
    for load in LOADS:
        times = time_instructions(executor, load, spec, vocab_size=vocab_size, max_num_tokens=512, rounds=15)
        seconds = sum(times)
        print(f"{name_of(load):<12} {seconds * 1e3:8.2f} ms {load.num_tokens / seconds:8.0f} tokens/s")


if __name__ == "__main__":
    main()
