"""Write the golden models and answers under tests/golden, or check that they still come out the same.

Run with torch and transformers at the versions of the `oracle` extra:

    python tools/make_goldens.py [--check] [--only NAME]

`--check` draws every model again and compares: weights and configuration exactly, logits within 5e-5 (other processors
sum in another order), greedy tokens exactly. It ends with status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.golden_cases import CASES, GoldenCase  # noqa: E402
from support.oracle import arrays_of, draw_with_margin, save  # noqa: E402

TOLERANCE = 5e-5
MODELS = ROOT / "tests" / "golden" / "models"


def write(case: GoldenCase, directory: Path) -> None:
    """Write one case: config.json, model.safetensors, answers.npz."""
    directory.mkdir(parents=True, exist_ok=True)
    model, answers = draw_with_margin(case)
    save(model, case, directory)
    spread = np.concatenate([each.logits.ravel() for each in answers]).std()
    np.savez_compressed(directory / "answers.npz", **arrays_of(answers))
    total = sum(path.stat().st_size for path in directory.iterdir())
    print(f"{case.name:24} {total / 1024:6.0f} KiB   logits' standard deviation {spread:.2f}")


def check(case: GoldenCase, committed: Path) -> list[str]:
    """Return what differs between the committed files and freshly made ones."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        write(case, fresh)
        differences = []
        if (fresh / "config.json").read_text() != (committed / "config.json").read_text():
            differences.append("config.json differs")
        if (fresh / "model.safetensors").read_bytes() != (committed / "model.safetensors").read_bytes():
            differences.append("weights differ")
        before, after = np.load(committed / "answers.npz"), np.load(fresh / "answers.npz")
        if before.files != after.files:
            return [*differences, "answers.npz holds other arrays"]
        furthest = {name: float(np.abs(before[name] - after[name]).max()) for name in before.files}
    return differences + [f"{name} differs by {gap:.2e}" for name, gap in furthest.items() if gap > TOLERANCE]


def main() -> int:
    """Write or check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    failed = 0
    for case in CASES:
        if arguments.only not in case.name:
            continue
        if not arguments.check:
            write(case, MODELS / case.name)
            continue
        for difference in check(case, MODELS / case.name):
            failed = 1
            print(f"{case.name}: {difference}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
