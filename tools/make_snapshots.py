"""Write the snapshots of the public surface anew; tests/repo/test_surface.py compares with them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.surface import SURFACES  # noqa: E402


def main() -> None:
    """Write one file per part of the surface, and say which changed."""
    directory = ROOT / "tests" / "repo" / "snapshots"
    directory.mkdir(exist_ok=True)
    for name, describe in SURFACES.items():
        path = directory / name
        text = describe()
        is_new = not path.exists() or path.read_text() != text
        path.write_text(text)
        print(f"{name}: {'written' if is_new else 'unchanged'}")


if __name__ == "__main__":
    main()
