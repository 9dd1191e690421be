"""Rows of Markdown tables."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Write a figure with as many digits as it deserves; `-` where there is none."""
    return "-" if value is None else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"  # noqa: PLR2004


def head(*names: str) -> str:
    """Write a table's first two lines."""
    return f"{row(*names)}\n|{' --- |' * len(names)}"


def row(*cells: str) -> str:
    """Write one line."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
