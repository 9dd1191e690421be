"""What an answer of a chat may not ask for yet, because no grammar makes sure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivium.base.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from trivium.config.sampling import SamplingParams


def refuse_unenforced(params: SamplingParams) -> None:
    """Refuse what would have to be enforced.

    Raises:
        UnsupportedFeatureError: A call is required, the calls or their arguments are limited, or reasoning is.
    """
    output = params.chat_output
    if output is None:
        return
    asked = {
        "tool_choice": output.tool_choice == "required" or output.allowed_tools is not None,
        "parallel_tool_calls": bool(output.callable_tools) and not output.parallel_tool_calls,
        "tools": any(tool.strict for tool in output.callable_tools),
        "max_reasoning_tokens": output.max_reasoning_tokens is not None,
        "structured_outputs": params.structured_outputs is not None and output.starts_in_reasoning,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise UnsupportedFeatureError(f"{name} cannot be enforced in such a chat yet", param=name)
