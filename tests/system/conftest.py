"""The command line, run in this process."""

from support.command_line import trivium as trivium
