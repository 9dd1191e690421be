"""Fuzz one harness by coverage: `python tests/fuzz/run.py NAME [--seconds 60] [--corpus FOLDER]`; `list` for the names.

Needs the extra `fuzz` (atheris). Ends with status 0 when no input broke a law; otherwise the input is in a file
`crash-…` in the present folder, and `--input FILE` runs it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
INSTRUMENTED = ["trivium.tokens", "trivium.grammar", "trivium.server", "trivium.config"]
LIMITS = ("-max_len=400", "-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1")


def main() -> None:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--input", type=Path)
    given = parser.parse_args()
    if given.name == "list":
        from fuzz.harnesses import HARNESSES  # noqa: PLC0415

        sys.stdout.write("\n".join(HARNESSES) + "\n")
    elif given.input is not None:
        from fuzz.harnesses import HARNESSES  # noqa: PLC0415

        HARNESSES[given.name](given.input.read_bytes())
    else:
        corpus = given.corpus or Path(tempfile.mkdtemp(prefix=f"fuzz-{given.name}-")) / "corpus"
        fuzz(given.name, given.seconds, corpus)


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Drive a harness by the coverage of the package's modules."""
    import atheris  # noqa: PLC0415  (optional)

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.harnesses import HARNESSES, SEEDS  # noqa: PLC0415
        from trivium.config.structural_tag import FORMATS  # noqa: PLC0415
        from trivium.grammar.keywords import KEYWORDS  # noqa: PLC0415

    corpus.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{place}").write_bytes(seed)
    words = corpus.with_name(f"{corpus.name}.words")
    words.write_text("".join(f'"{word}"\n' for word in (*KEYWORDS, *FORMATS, "::=", "start: ", "[0-9]")))
    atheris.Setup([sys.argv[0], *LIMITS, f"-max_total_time={seconds}", f"-dict={words}", str(corpus)], HARNESSES[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
