"""The `trivium` command: its sub-commands, how it fails, and with which exit code.

Exit codes: 0 done, 1 it went wrong, 2 it was called wrongly (a bad option or its value), 130 interrupted. An error is
one line on standard error; a traceback only with `--log-level debug`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from cyclopts import App, CycloptsError, Group, UnusedCliTokensError

from trivium import __version__
from trivium.base.errors import ConfigError, ModelError, TriviumError
from trivium.cli import pages
from trivium.cli.terminal import fail, write

OK, WENT_WRONG, CALLED_WRONGLY, INTERRUPTED = 0, 1, 2, 130


class Command(NamedTuple):
    """A sub-command, and the function behind it, which is imported when it is called."""

    words: tuple[str, ...]
    function: str
    meaning: str
    group: str


COMMANDS: tuple[Command, ...] = (
    Command(("serve",), "trivium.cli.serve:serve", "Answer OpenAI requests over HTTP.", "Run a model"),
    Command(("chat",), "trivium.cli.chat:chat", "Talk to a model in the terminal.", "Run a model"),
    Command(("generate",), "trivium.cli.generate:generate", "Complete prompts from flags or stdin.", "Run a model"),
    Command(("run",), "trivium.cli.run:run", "Run a program, here or inside a server.", "Run a model"),
    Command(("pull",), "trivium.cli.models:pull", "Fetch a model into the cache.", "Manage models"),
    Command(("models",), "trivium.cli.models:models", "List catalog and cache.", "Manage models"),
    Command(("rm",), "trivium.cli.models:remove", "Remove a model from the cache.", "Manage models"),
    Command(("cache", "show"), "trivium.cli.cache:show_cache", "Show what a disk cache holds.", "Manage models"),
    Command(("cache", "wipe"), "trivium.cli.cache:wipe_cache", "Remove every page of a disk cache.", "Manage models"),
    Command(("describe",), "trivium.cli.describe:describe", "Show a model's shape, weights and options.", "Inspect"),
    Command(("doctor",), "trivium.cli.doctor:doctor", "Find what is wrong with this machine or install.", "Inspect"),
    Command(("config", "show"), "trivium.cli.show:show", "Print every option, its value and its origin.", "Inspect"),
    Command(("schema", "check"), "trivium.cli.schema:check", "List what of a schema cannot be enforced.", "Inspect"),
    Command(("compile",), "trivium.cli.compile:compile_models", "Make plans, tune them, pack weights.", "Compile"),
    Command(("explain",), "trivium.cli.explain:explain", "Show what a plan does and what it costs.", "Compile"),
    Command(("verify",), "trivium.cli.verify:verify", "Compare a plan with the reference.", "Compile"),
    Command(("plans", "list"), "trivium.cli.plans:list_plans", "List plans and packed weights.", "Compile"),
    Command(("plans", "show"), "trivium.cli.plans:show_plan", "Show what a plan fits and holds.", "Compile"),
    Command(("plans", "prune"), "trivium.cli.plans:prune_plans", "Remove what is old or foreign.", "Compile"),
    Command(("bench", "offline"), "trivium.cli.bench:offline", "Measure the engine in this process.", "Measure"),
    Command(("bench", "serve"), "trivium.cli.bench:serve", "Load a server and measure it.", "Measure"),
)
GROUPS = ("Run a model", "Manage models", "Compile", "Inspect", "Measure")
FAMILIES = {
    "cache": "Prefixes kept on disk (--disk-cache).",
    "config": "Values of options and their origins.",
    "schema": "JSON Schemas that answers are held to.",
    "plans": "Compiled plans and packed weights in the cache.",
    "bench": "Throughput and latency.",
}

_HELP_FLAGS = ("--help", "-h", pages.HELP_ALL)
_EPILOGUE = "Every option is also a TRIVIUM_* variable and a key of a --config file; see `trivium config show`."


def build_program(page: pages.HelpPage | None = None) -> App:
    """Make the command-line program, with what draws its help; no command's module is imported yet."""
    groups = {name: Group(name, sort_key=place) for place, name in enumerate(GROUPS)}
    app = App(
        name="trivium",
        help="One LLM inference engine in which scheduling, language and compilation meet.",
        version=__version__,
        help_format="plaintext",
        help_epilogue=_EPILOGUE,
        help_flags=_HELP_FLAGS,
        help_formatter=page,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    app["--help"].help = f"Display this message and exit; {pages.HELP_ALL} shows advanced options too."
    families: dict[str, App] = {}
    for command in COMMANDS:
        parent = app
        if len(command.words) > 1:
            family = command.words[0]
            if family not in families:
                families[family] = App(
                    name=family, help=FAMILIES[family], group=groups[command.group], help_flags=_HELP_FLAGS
                )
                app.command(families[family])
            parent = families[family]
        group = groups[command.group] if parent is app else None
        parent.command(command.function, name=command.words[-1], help=command.meaning, group=group)
    app.register_install_completion_command(group=Group("Shell", sort_key=len(GROUPS)))
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        arguments: Words after the program's name; those of the process when `None`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    page = pages.HelpPage(is_whole=pages.HELP_ALL in words)
    try:
        result = build_program(page)(words)
        if page.num_left_out:
            write(page.hint())
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else WENT_WRONG
    except (Exception, KeyboardInterrupt) as error:
        # The outermost frame: nothing above could do better.
        return _report(error, words)
    return result if isinstance(result, int) else OK


def _report(error: BaseException, words: Sequence[str]) -> int:
    """Say what went wrong, and return the exit code for it."""
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has gone; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WENT_WRONG
    message, code = _explain(error, words)
    if _is_debugging(words) and code == WENT_WRONG:
        traceback.print_exception(error)
    elif not isinstance(error, (TriviumError, CycloptsError, KeyboardInterrupt)):
        message += "; --log-level debug shows where"
    fail(message)
    return code


def _explain(error: BaseException, words: Sequence[str]) -> tuple[str, int]:
    match error:
        case KeyboardInterrupt():
            message, code = "interrupted", INTERRUPTED
        case UnusedCliTokensError(unused_tokens=list(unused)):
            message, code = f"unexpected: {' '.join(unused)}{_list_hint(words)}. See --help.", CALLED_WRONGLY
        case CycloptsError():
            message, code = f"{error} See --help.", CALLED_WRONGLY
        case ConfigError():
            message, code = str(error), CALLED_WRONGLY
        case TriviumError():
            message, code = f"{error}{_list_hint(words) if isinstance(error, ModelError) else ''}", WENT_WRONG
        case _:
            message, code = f"internal error: {type(error).__name__}: {error}", WENT_WRONG
    return message, code


def _list_hint(words: Sequence[str]) -> str:
    """Say how a list is written, where a flag that takes one is followed by several words; else nothing.

    The second word is then the model's name, or one too many.
    """
    from trivium.bench.options import ServeOptions  # noqa: PLC0415  (start-up time)
    from trivium.config.options import EngineOptions, ServerOptions  # noqa: PLC0415
    from trivium.config.record import options_of  # noqa: PLC0415
    from trivium.config.sampling import SamplingParams  # noqa: PLC0415

    records = (EngineOptions, ServerOptions, SamplingParams, ServeOptions)
    lists = {option.flag: option for record in records for option in options_of(record) if option.is_many}
    for flag, first, second in zip(words, words[1:], words[2:], strict=False):
        if flag in lists and not first.startswith("-") and not second.startswith("-"):
            commas = f", or separate by commas: {flag} {first},{second}" if lists[flag].is_split else ""
            return f"; for several values repeat the flag: {flag} {first} {flag} {second}{commas}"
    return ""


def _is_debugging(words: Sequence[str]) -> bool:
    """Whether debug messages are wanted, also when the options were never read."""
    from_flag = any(
        word == "--log-level=debug" or (word == "--log-level" and words[place + 1 : place + 2] == ["debug"])
        for place, word in enumerate(words)
    )
    return from_flag or os.environ.get("TRIVIUM_LOG_LEVEL") == "debug"
