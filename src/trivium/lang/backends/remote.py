"""What the language asks of a model behind somebody else's API: texts and messages instead of tokens.

A remote model writes text that a program goes on with; what it read and wrote has no tokens here. So `perform` gives
such a backend the messages (or the text), and takes the answer as pieces. What an API cannot do is refused by name
before anything is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from trivium.base.errors import InternalError, TemplateError, UnsupportedFeatureError
from trivium.config.sampling import SamplingParams
from trivium.grammar.stops import StopConditions, StopState

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.engine.messages import Delta
    from trivium.lang.choices import TokenLogprob
    from trivium.lang.transcript import Codec

ANSWERING = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a `gen` asks of a remote model."""

    text: str
    """The whole text of the state."""
    messages: Sequence[Mapping[str, str]]
    """Messages that have ended."""
    open_role: str | None
    """Role of the message in which the model writes."""
    open_content: str
    """What that message holds so far."""
    has_loose_text: bool
    """Whether some of the text is in no message."""
    params: SamplingParams


class Piece(NamedTuple):
    """A piece of an answer."""

    choice: int
    text: str
    meta: Mapping[str, Any] = {}
    """What became known of the answer with it; lists are appended to those before."""


@dataclass(slots=True)
class TokenUsage:
    """Tokens that an API has counted so far, over all programs."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        """Begin anew."""
        self.prompt_tokens = self.completion_tokens = 0


class NoTokens:
    """The codec of a model whose tokens nobody sees."""

    prefix: tuple[int, ...] = ()

    def encode(self, text: str, *, continues: bool) -> list[int]:
        """Refuse.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a remote model's text is not cut into tokens here")

    def token_bytes(self, token_id: int) -> bytes | None:
        """Refuse.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a remote model's text is not cut into tokens here")


class RemoteBackend(ABC):
    """A model behind an API."""

    codec: Codec = NoTokens()
    is_chat_model: bool = True
    """Whether it takes messages rather than a text."""
    max_stops: int = 4
    """Stop texts that the API takes; what is more is looked for here."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.token_usage = TokenUsage()

    @abstractmethod
    def write(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Answer and yield pieces as they come; closing the generator ends the request.

        Raises:
            UnsupportedFeatureError: The API cannot do what is asked.
            RemoteError: It refused, or failed.
        """

    async def score(self, text: str, choices: Sequence[str]) -> list[list[TokenLogprob]]:
        """Return the logprobs of each choice's tokens behind a text.

        Raises:
            UnsupportedFeatureError: The API does not tell them.
            RemoteError: It refused, or failed.
        """
        raise self.unsupported("select", "its API does not score given texts; ask with gen, and a stop or json_schema")

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages as `text()` shows them; the API is given the messages themselves.

        Raises:
            TemplateError: The model takes no messages.
        """
        written = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
        return written + (f"<|im_start|>{ANSWERING}\n" if add_generation_prompt else "")

    def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Refuse: there are no tokens.

        Raises:
            InternalError: Always.
        """
        raise InternalError("a remote model is asked by texts and messages")

    def end_program(self, program_id: str) -> None:  # noqa: B027  (nothing has to be done)
        """Tell nobody: an API knows no programs."""

    def flush_cache(self) -> None:
        """Refuse: the cache is not ours.

        Raises:
            UnsupportedFeatureError: Always.
        """
        raise self.unsupported("flush_cache", "its cache is the provider's")

    @property
    def info(self) -> Mapping[str, Any]:
        """The model's name, and what it has cost so far."""
        usage = {
            "prompt_tokens": self.token_usage.prompt_tokens,
            "completion_tokens": self.token_usage.completion_tokens,
        }
        return {"model": self.model_name, "backend": type(self).__name__, **usage}

    def unsupported(self, what: str, why: str) -> UnsupportedFeatureError:
        """Make the error that says what this API cannot do, and what to do instead."""
        return UnsupportedFeatureError(
            f"{what} is not supported on {self.model_name} through {type(self).__name__}: {why}", param=what
        )

    def refuse_all_but(self, honoured: frozenset[str], params: SamplingParams) -> None:
        """Refuse parameters that ask for something and are not honoured.

        Raises:
            UnsupportedFeatureError: One does; the message names it.
        """
        for each in fields(SamplingParams):
            value = getattr(params, each.name)
            if each.name not in honoured and value not in (
                getattr(_NEUTRAL, each.name),
                *_NEUTRAL_TOO.get(each.name, ()),
            ):
                name = _NAMES.get(each.name, each.name)
                raise self.unsupported(name, f"its API has no such field (it is {value!r}); leave it out")


_NEUTRAL = SamplingParams()
_NEUTRAL_TOO: Mapping[str, tuple[Any, ...]] = {"top_k": (-1,), "max_tokens": (None,)}
_NAMES: Mapping[str, str] = {"prompt_logprobs": "logprob_start_len", "logprobs": "return_logprob"}
"""What `gen` calls parameters that have another name there."""


@dataclass(slots=True)
class Cutter:
    """Cuts an answer where a stop is whole, for APIs that know fewer kinds of stops."""

    stops: StopConditions
    matched: str | None = None
    """The stop that was found."""
    _state: StopState = field(default_factory=StopState)
    _held: str = ""

    @property
    def is_done(self) -> bool:
        """Whether a stop was found."""
        return self.matched is not None

    def push(self, text: str) -> str:
        """Take more of the answer, and return what is certain; nothing once a stop was found."""
        if self.matched is not None:
            return ""
        known = self._held + text
        for end, letter in enumerate(text, start=len(self._held) + 1):
            self._state = self.stops.step(self._state, letter)
            whole = self.stops.whole(self._state)
            if whole is not None:
                self.matched, self._held = whole.stop, ""
                return known[: end - whole.length]
        certain = len(known) - self.stops.held(self._state)
        self._held = known[certain:]
        return known[:certain]

    def finish(self) -> str:
        """Return what was held back, when the answer has ended by itself."""
        held, self._held = self._held, ""
        return held


def text_prompt(asked: Asked, backend: RemoteBackend) -> str:
    """Return the text that a completion model goes on with.

    Raises:
        TemplateError: It is empty.
    """
    if not asked.text:
        raise TemplateError(f"{backend.model_name} is asked to go on with no text; write something before gen")
    return asked.text
