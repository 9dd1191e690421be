"""What the language asks of a backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trivium.config.program_share import ProgramShare
    from trivium.config.sampling import SamplingParams
    from trivium.engine.messages import Delta
    from trivium.lang.transcript import Codec


class Backend(Protocol):
    """A model that answers prompts."""

    codec: Codec

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:  # noqa: FBT001
        """Write messages through the model's chat template.

        Raises:
            TemplateError: The template refuses them, or there is none.
        """
        ...

    def submit(
        self, prompt_ids: list[int], params: SamplingParams, program: ProgramShare | None = None
    ) -> AsyncGenerator[Delta]:
        """Answer a prompt and yield its news; closing the generator aborts the request.

        Args:
            prompt_ids: The prompt.
            params: How it is sampled.
            program: The run to which it belongs; a hint for cache and scheduler, which may be passed over.

        Raises:
            RequestError: The request is refused.
        """
        ...

    def end_program(self, program_id: str) -> None:
        """Note that a run has ended, and asks for nothing any more; never waits."""
        ...

    def flush_cache(self) -> None:
        """Forget cached prefixes that no running request uses."""
        ...

    @property
    def info(self) -> Mapping[str, Any]:
        """What is known of the model."""
        ...
