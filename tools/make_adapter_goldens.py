"""Write the golden adapters and their answers under tests/golden/adapters, or check that they still come out the same.

Run with torch, transformers and peft at the versions of the `oracle` extra:

    python tools/make_adapter_goldens.py [--check] [--only NAME]

`--check` draws every adapter again and compares: matrices and what their configuration means exactly, logits within
5e-5, greedy tokens exactly. It ends with status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.adapter_cases import ADAPTER_CASES, AdapterCase  # noqa: E402
from support.adapter_oracle import draw_adapted, save_adapter  # noqa: E402
from support.oracle import arrays_of  # noqa: E402

TOLERANCE = 5e-5
ADAPTERS = ROOT / "tests" / "golden" / "adapters"


def write(case: AdapterCase, directory: Path) -> None:
    """Write one case: adapter_config.json, adapter_model.safetensors, answers.npz."""
    directory.mkdir(parents=True, exist_ok=True)
    model, answers = draw_adapted(case)
    save_adapter(model, case, directory)
    np.savez_compressed(directory / "answers.npz", **arrays_of(answers))
    total = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{case.name:24} {total / 1024:6.0f} KiB")


def check(case: AdapterCase, committed: Path) -> list[str]:
    """Return what differs between the committed files and freshly made ones."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        write(case, fresh)
        differences = []
        if _meaning(fresh) != _meaning(committed):
            differences.append("adapter_config.json differs")
        name = "adapter_model.safetensors"
        if (fresh / name).read_bytes() != (committed / name).read_bytes():
            differences.append("matrices differ")
        before, after = np.load(committed / "answers.npz"), np.load(fresh / "answers.npz")
        if before.files != after.files:
            return [*differences, "answers.npz holds other arrays"]
        furthest = {name: float(np.abs(before[name] - after[name]).max()) for name in before.files}
    return differences + [f"{name} differs by {gap:.2e}" for name, gap in furthest.items() if gap > TOLERANCE]


def _meaning(directory: Path) -> dict[str, object]:
    """Read a configuration; lists that peft keeps as sets come in any order."""
    read = json.loads((directory / "adapter_config.json").read_text())
    return {key: sorted(value) if key == "target_modules" else value for key, value in read.items()}


def main() -> int:
    """Write or check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    failed = 0
    for case in ADAPTER_CASES:
        if arguments.only not in case.name:
            continue
        if not arguments.check:
            write(case, ADAPTERS / case.name)
        elif differences := check(case, ADAPTERS / case.name):
            failed += 1
            print(f"{case.name}: {'; '.join(differences)}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
