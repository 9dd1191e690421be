"""`trivium run`: a program of `trivium.lang`, on a model in this process or whole inside a server."""

from __future__ import annotations

import inspect
import json as json_text
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from trivium.base.errors import ConfigError
from trivium.cli.flags import ConfigFile, flags_of, settle
from trivium.cli.terminal import write, write_json
from trivium.config.options import CompileOptions, EngineOptions, ScheduleOptions

if TYPE_CHECKING:
    from trivium.lang import SglFunction


@flags_of(EngineOptions, without=("model",), aside=(ScheduleOptions, CompileOptions))
def run(
    program: str,
    /,
    *,
    args: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--args", "-a"), help="NAME=VALUE, or NAME:=JSON; may be repeated.", negative="", show_default=False
        ),
    ] = (),
    model: Annotated[str | None, Parameter(help="Model to run it on in this process.", show_default=False)] = None,
    url: Annotated[
        str | None, Parameter(help="Server to run it in, whole, instead of a model here.", show_default=False)
    ] = None,
    api_key: Annotated[str | None, Parameter(help="API key of that server.", show_default=False)] = None,
    explain: Annotated[
        bool, Parameter(help="Print the program as it is traced, and run nothing.", negative="", show_default=False)
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print one JSON object with all variables.", negative="", show_default=False)
    ] = False,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Run a program, FILE.py:FUNCTION, and print its variables while they grow.

    Raises:
        ConfigError: A flag has a bad value, or there is no such program.
        ProgramError: A primitive of it failed.
        RequestError: The server refuses it.
    """
    function = load(program)
    given = arguments_of(args)
    if explain:
        write(function.trace().to_text())
        return 0
    _check_arguments(function, given)
    if url is not None:
        if model is not None or flags:
            raise ConfigError("with --url the server's own model and options hold; leave --model and options out")
        return _in_server(function, given, url, api_key, is_json=json)
    if api_key is not None:
        raise ConfigError("--api-key is for a server; give its address with --url")
    from trivium.cli.generate import open_llm  # noqa: PLC0415  (start-up time)

    with open_llm(settle((EngineOptions,), flags, config=config, model=model)) as llm:
        return _here(function, given, llm, is_json=json)


def load(program: str) -> SglFunction:
    """Return the program of FILE.py:FUNCTION; its file is run as a module of its own name.

    Raises:
        ConfigError: There is no such file, or no program of that name in it.
    """
    import importlib.util  # noqa: PLC0415  (start-up time)

    path, separator, name = program.rpartition(":")
    file = Path(path)
    if not separator or not name.isidentifier() or file.suffix != ".py":
        raise ConfigError(f"program is {program!r}; write FILE.py:FUNCTION")
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(module)
    from trivium.lang import SglFunction  # noqa: PLC0415  (start-up time)

    known = [each for each, value in vars(module).items() if isinstance(value, SglFunction)]
    if name not in known:
        raise ConfigError(f"{file} has no program '{name}'; programs in it are {', '.join(known) or 'none'}")
    found: SglFunction = getattr(module, name)
    return found


def _check_arguments(function: SglFunction, given: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function.func).bind(None, **given)
    except TypeError as error:
        names = ", ".join(list(inspect.signature(function.func).parameters)[1:]) or "none"
        raise ConfigError(f"{error}; give arguments with --args NAME=VALUE (parameters are {names})") from None


def arguments_of(texts: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE, whose value is a text, and NAME:=JSON.

    Raises:
        ConfigError: One is written otherwise, or names an argument twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not separator or not name.isidentifier():
            raise ConfigError(f"--args is {text!r}; write NAME=VALUE, or NAME:=JSON")
        if name in found:
            raise ConfigError(f"--args gives '{name}' twice")
        try:
            found[name] = json_text.loads(value) if is_json else value
        except ValueError as error:
            raise ConfigError(f"--args {name} is no JSON: {error}") from None
    return found


def _here(function: SglFunction, given: Mapping[str, Any], llm: Any, *, is_json: bool) -> int:
    state = function.run(**given, backend=llm, stream=not is_json)
    if is_json:
        state.sync()
        names = list(state._strand.variables)  # noqa: SLF001  (in the order in which they were set)
        write_json({"variables": {name: state[name] for name in names}, "text": state.text()}, is_line=True)
        return 0
    for text in state.text_iter():
        write(text, end="")
    write("")
    for name in list(state._strand.variables):  # noqa: SLF001
        write(f"{name}: {_shown(state[name])}")
    return 0


def _in_server(function: SglFunction, given: Mapping[str, Any], url: str, key: str | None, *, is_json: bool) -> int:
    """Send the traced program; its tools are called here, where it was written."""
    from trivium.cli.remote_program import run_remotely  # noqa: PLC0415  (start-up time)

    tools = dict(function.tools)
    ended: dict[str, Any] = {}
    for event in run_remotely(url, key, json_text.loads(function.trace().to_json()), given, tools):
        if event["type"] == "variable.value" and not is_json and event["state"] == 0:
            write(f"{event['name']}: {_shown(event['value'])}")
        ended = event
    if is_json:
        write_json({name: ended[name] for name in ("variables", "result", "text", "usage")}, is_line=True)
    return 0


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False, default=str)
