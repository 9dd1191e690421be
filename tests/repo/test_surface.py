"""The public surface is what the snapshots say; a change is written with `make snapshots` and told in the changelog."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.surface import SURFACES

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("name", sorted(SURFACES))
def test_the_surface_is_the_one_in_its_snapshot(name: str) -> None:
    assert SURFACES[name]() == (SNAPSHOTS / name).read_text(), (
        "if this change is meant: make snapshots, and CHANGELOG.md"
    )


def test_every_snapshot_has_its_surface() -> None:
    assert sorted(path.name for path in SNAPSHOTS.iterdir()) == sorted(SURFACES)
