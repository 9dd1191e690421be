"""Help pages: `--help` shows what a first start needs and counts the rest, `--help-all` shows everything.

A panel of advanced options is one of its own, after that of its record's other options; a page leaves it out by its
title.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

HELP_ALL = "--help-all"
_MARK = ", advanced"


def advanced(heading: str) -> str:
    """Make the heading of a record's advanced options from the record's own."""
    return heading + _MARK


class HelpPage:
    """Draws the panels of a help page.

    Args:
        is_whole: Whether panels of advanced options are drawn, or counted.
    """

    def __init__(self, *, is_whole: bool) -> None:
        from cyclopts.help import DefaultFormatter  # noqa: PLC0415  (start-up time)

        self._is_whole = is_whole
        self._formatter = DefaultFormatter()
        self.num_left_out = 0
        """Options that were not drawn."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Draw a panel, or count its options."""
        if str(panel.title).endswith(_MARK) and not self._is_whole:
            self.num_left_out += len(panel.entries)
        else:
            self._formatter(console, options, panel)

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """Draw the line that says how the command is called."""
        self._formatter.render_usage(console, options, usage)

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Draw what the command does."""
        self._formatter.render_description(console, options, description)

    def hint(self) -> str:
        """Say how the options that were left out are shown."""
        return f"Advanced options that are not shown: {self.num_left_out}; {HELP_ALL} shows them."
