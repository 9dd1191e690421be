"""`ModelWords`: what a backend knows of its model's words, where tokenizer and chat template are at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trivium.base.errors import TemplateError
from trivium.lang.transcript import Codec, TokenCodec

if TYPE_CHECKING:
    from trivium.tokens.chat import ChatTemplate
    from trivium.tokens.tokenizer import Tokenizer


class ModelWords:
    """Cuts texts and writes messages in this process."""

    def __init__(self, name: str, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.codec: Codec = TokenCodec(tokenizer)
        self._name = name
        self._template = template

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages through the model's chat template.

        Raises:
            TemplateError: The template refuses them, or there is none.
        """
        if self._template is None:
            raise TemplateError(f"{self._name} has no chat template, so programs on it have no roles")
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)
