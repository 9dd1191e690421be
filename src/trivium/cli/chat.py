"""`trivium chat`: a conversation in the terminal, with a model in this process or behind a URL."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from trivium.base.errors import ConfigError, RequestError
from trivium.cli.flags import ConfigFile, GivenFlags, ModelName, flags_of, given_params, settle, without
from trivium.cli.generate import chat_prompt, open_llm, params_of
from trivium.cli.terminal import fail, note, write, write_dim
from trivium.config.options import CompileOptions, EngineOptions, LogOptions, ScheduleOptions
from trivium.config.record import options_of
from trivium.config.resolve import Settings
from trivium.config.sampling import SamplingParams

Message = dict[str, Any]


class Piece(NamedTuple):
    """A piece of an answer."""

    text: str
    is_reasoning: bool = False


Answer = Callable[[list[Message]], Iterator[Piece]]
"""Pieces of the answer to a conversation, as they come."""

HELP = "/reset forgets the conversation, /exit (or end of input) leaves, Ctrl-C stops an answer"


UNANSWERABLE = ("n", "best_of", "logprobs", "prompt_logprobs", "prompt_logprob_start", "logprobs_mode")
"""Parameters of which a conversation in a terminal could show nothing."""


@flags_of(
    SamplingParams, EngineOptions, without=("model",), hidden=UNANSWERABLE, aside=(ScheduleOptions, CompileOptions)
)
def chat(
    model: ModelName = None,
    /,
    *,
    system: Annotated[str | None, Parameter(help="System message.", show_default=False)] = None,
    url: Annotated[str | None, Parameter(help="OpenAI server to talk to instead of loading a model.")] = None,
    key: Annotated[str | None, Parameter(help="API key for --url; OPENAI_API_KEY when not given.")] = None,
    config: ConfigFile = None,
    **flags: Any,
) -> int:
    """Talk to a model; /reset starts over, /exit leaves.

    Raises:
        ConfigError: A flag has a bad value, or the model has no chat template.
        ServerAnswerError: The server behind `--url` cannot be reached or refuses.
    """
    params = given_params(flags)
    _refuse_idle_flags(flags, url, key)
    settings = settle((EngineOptions,), without(SamplingParams, flags), config=config, model=model)
    with _partner(settings, params, model, url, key) as answer:
        Conversation(answer, system).run()
    return 0


def _refuse_idle_flags(flags: GivenFlags, url: str | None, key: str | None) -> None:
    """Refuse flags that would change nothing.

    Raises:
        ConfigError: A parameter that `chat` shows nothing of, an engine's flag with `--url`, or a key without it.
    """
    refused = [option.flag for option in options_of(SamplingParams) if option.name in flags.keys() & set(UNANSWERABLE)]
    if refused:
        raise ConfigError(f"chat shows one answer as text and does not take {', '.join(refused)}; generate does")
    if url is None and key is not None:
        raise ConfigError("--key is sent to a server; give its address with --url")
    engine_flags = without(SamplingParams, flags).keys()
    told = {option.name for option in options_of(LogOptions)}
    idle = [option.flag for option in options_of(EngineOptions) if option.name in engine_flags - told]
    if url is not None and idle:
        raise ConfigError(f"{', '.join(idle)}: for a model in this process; the server at --url has options of its own")


def _partner(
    settings: Settings, params: dict[str, Any], model: str | None, url: str | None, key: str | None
) -> AbstractContextManager[Answer]:
    if url is not None:
        from trivium.cli.remote import remote_answers  # noqa: PLC0415  (start-up time)

        return remote_answers(url, key or os.environ.get("OPENAI_API_KEY"), model, params)
    return _local_answers(settings, params)


@contextlib.contextmanager
def _local_answers(settings: Settings, given: dict[str, Any]) -> Iterator[Answer]:
    with open_llm(settings) as llm:
        params = params_of(llm, given)

        def answer(messages: list[Message]) -> Iterator[Piece]:
            ids, output = chat_prompt(llm, messages)
            for news in llm.stream(ids, replace(params, chat_output=output)):
                if news.error:
                    raise RequestError(news.error)
                if news.parts is None:
                    yield Piece(news.text)
                for part in news.parts or ():
                    yield Piece(part.text, is_reasoning=part.kind == "reasoning")

        yield answer


class Conversation:
    """Reads lines, prints answers, remembers both."""

    def __init__(self, answer: Answer, system: str | None) -> None:
        self._answer = answer
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[Message] = list(self._opening)

    def run(self) -> None:
        """Go on until /exit or the end of input."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415  (line editing and history of `input`, where there is one)
            note(HELP)
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/reset":
                    self._messages = list(self._opening)
                    note("(forgotten)")
                case "/help":
                    note(HELP)
                case text if text.startswith("/"):
                    note(f"there is no command {text.split()[0]}; {HELP}")
                case text:
                    self._exchange(text)

    def _read(self) -> str | None:
        try:
            if sys.stdin.isatty():
                return input("> ")
            return sys.stdin.readline() or None
        except EOFError:
            return None
        except KeyboardInterrupt:
            note("")
            return None

    def _exchange(self, text: str) -> None:
        """Send a message; one that is refused is forgotten, so that the conversation can go on."""
        self._messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with contextlib.closing(self._answer(self._messages)) as stream:  # type: ignore[type-var]
                for piece in stream:
                    if piece.is_reasoning:
                        write_dim(piece.text)
                        continue
                    pieces.append(piece.text)
                    write(piece.text, end="")
        except KeyboardInterrupt:
            write(" [stopped]", end="")
        except RequestError as error:
            self._messages.pop()
            fail(str(error))
            return
        write("")
        self._messages.append({"role": "assistant", "content": "".join(pieces)})
