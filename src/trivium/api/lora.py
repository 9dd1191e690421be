"""Which adapter answers a prompt: by name, or by vLLM's `LoRARequest`, which loads it when it is used first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trivium.base.errors import InvalidParameterError


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by name and folder.

    Fields are vLLM's. There an adapter's key is `lora_int_id`; here it is `lora_name`, and the number is only kept.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str | Path = ""
    """Folder that peft wrote; may be empty where the name is loaded."""


Lora = str | LoRARequest | None
"""Name of a loaded adapter, an adapter with its folder, or the base alone."""
Loras = Lora | Sequence[Lora]
"""For every prompt, or one per prompt."""


def name_and_path(lora: str | LoRARequest) -> tuple[str, str]:
    """Return an adapter's name and its folder, absolute; an empty text for no folder."""
    if isinstance(lora, str):
        return lora, ""
    return lora.lora_name, absolute(lora.lora_path) if lora.lora_path else ""


def absolute(path: str | Path) -> str:
    """Return a folder as the engine takes it."""
    return str(Path(path).expanduser().absolute())


def per_prompt(given: Any, num_prompts: int) -> list[Lora]:
    """Return one adapter per prompt.

    Raises:
        InvalidParameterError: They are no adapters, or not as many as prompts.
    """
    listed = list(given) if isinstance(given, (list, tuple)) else [given] * num_prompts
    for one in listed:
        if one is not None and not isinstance(one, (str, LoRARequest)):
            raise InvalidParameterError(
                f"lora_request has {str(one)[:60]} ({type(one).__name__}); it must be the name of a loaded adapter, a "
                "LoRARequest, None, or a list with one per prompt",
                param="lora_request",
            )
    if len(listed) != num_prompts:
        raise InvalidParameterError(
            f"there are {num_prompts} prompts and {len(listed)} lora_requests; give one, or one per prompt",
            param="lora_request",
        )
    return listed
