r"""Roles in the words of the model's own chat template, written turn by turn.

The template never sees a message's content, only marks in its place; what it writes between two marks is what stands
between two messages. So text that was written stays as it is, token for token, whatever follows: templates that rewrite
earlier turns (trim them, drop their reasoning) cannot, and the prefix cache holds every turn. ::

    template      <|im_start|>user\\n MARK <|im_end|>\\n<|im_start|>assistant\\n MARK <|im_end|>\\n
    state         opening            ...  closing      opening                ...  closing
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trivium.base.errors import InvalidParameterError, TemplateError

Render = Callable[[Sequence[Mapping[str, str]], bool], str]
"""Messages, and whether the beginning of an answer is added, to the prompt's text.

Raises `TemplateError`, also where there is no template."""


@dataclass(slots=True, kw_only=True)
class Roles:
    """The messages of one state, and what the template writes around them."""

    render: Render
    messages: list[dict[str, str]] = field(default_factory=list)
    """Those that have ended, with their contents."""
    open_role: str | None = None
    has_loose_text: bool = False
    """Whether some text is in no message."""
    _begun: list[str] = field(default_factory=list)
    """Roles of the messages that the text holds, the open one included."""
    _closing: str = ""
    """What was last written behind a message."""
    _starts: str | None = None
    """A role that was begun and whose opening waits: it depends on whether the model writes first."""
    _content: str = ""
    """What the open message holds."""
    _held: str | None = None
    """Content of a system message that the template writes only with the message behind it."""

    def fork(self) -> Roles:
        """Return one that goes on from here by itself."""
        copied = replace(self, messages=[dict(message) for message in self.messages])
        copied._begun = list(self._begun)  # noqa: SLF001  (of the same class)
        return copied

    def begin(self, role: str) -> None:
        """Begin a message.

        Raises:
            InvalidParameterError: Another one is open.
        """
        if self.open_role is not None:
            raise InvalidParameterError(f"{role} begins inside {self.open_role}; roles do not nest")
        self.open_role = self._starts = role
        self._content = ""

    def write(self, text: str) -> str:
        """Take a constant, and return what the state's text goes on with.

        Raises:
            TemplateError: The template refuses the messages, or cannot write them turn by turn.
        """
        opening = self._open(by_model=False)
        self._content += text
        if self._is_held:
            self._held = self._content
            return ""
        return opening + text

    def before_model(self) -> str:
        """Return what the state's text goes on with before the model writes.

        Raises:
            TemplateError: As for `write`.
        """
        opening = self._open(by_model=True)
        if self._is_held:
            raise TemplateError("the chat template writes the system message with the next one, so the model cannot")
        return opening

    def pass_by(self, text: str) -> None:
        """Take text that is in no message."""
        self.has_loose_text = self.has_loose_text or not text.isspace()

    @property
    def open_content(self) -> str:
        """What the open message holds so far."""
        return "" if self.open_role is None else self._content

    def wrote(self, text: str) -> None:
        """Take what the model wrote."""
        self._content += text

    def end(self, role: str) -> str:
        """End the open message and return what the state's text goes on with.

        Raises:
            InvalidParameterError: It is not of that role, or none is open.
            TemplateError: As for `write`.
        """
        if self.open_role != role:
            raise InvalidParameterError(f"{role} ends, but {self.open_role or 'no role'} has begun")
        opening = self._open(by_model=False)
        self.messages.append({"role": role, "content": self._content.lstrip()})
        is_held, self.open_role = self._is_held, None
        if is_held:
            return ""
        self._closing = self._between(self._begun, answers=False)[-1]
        return opening + self._closing

    @property
    def _is_held(self) -> bool:
        return self._held is not None and self._begun == [] and self.open_role is not None

    def _open(self, *, by_model: bool) -> str:
        """Write what stands before the open message, unless that has been done."""
        if self._starts is None:
            return ""
        role, self._starts = self._starts, None
        begun = [*self._begun] if self._held is None else ["system"]
        answers = by_model and role == "assistant"
        try:
            texts = self._between(begun, answers=True) if answers else self._between([*begun, role], answers=False)[:-1]
        except TemplateError:
            if begun or role != "system":
                raise
            self._held = ""  # by itself it cannot be written
            return ""
        self._begun = [*begun, role]
        if self._held is not None:
            before, self._held = self._held, None
            return texts[0] + before + texts[1]
        if not texts[-1].startswith(self._closing):
            raise TemplateError(
                f"the chat template writes {self._closing!r} behind a last message and {texts[-1]!r} behind the same "
                f"one before {role}; it cannot be followed turn by turn"
            )
        return texts[-1].removeprefix(self._closing)

    def _between(self, roles: Sequence[str], *, answers: bool) -> list[str]:
        """Return what the template writes before, between and behind messages: one text more than there are roles."""
        mark = f"m{secrets.token_hex(8)}"
        messages = [{"role": role, "content": f"{mark}{idx}m"} for idx, role in enumerate(roles)]
        texts = re.split(f"{mark}([0-9]+)m", self.render(messages, answers))
        if texts[1::2] != [str(idx) for idx in range(len(roles))]:
            raise TemplateError(
                f"the chat template does not write the roles {', '.join(roles)} one after the other; "
                "it cannot be followed turn by turn"
            )
        return texts[0::2]
