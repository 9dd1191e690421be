"""Trivium: one LLM inference engine in which scheduling, language and compilation meet.

Importing this package loads neither NumPy nor any model code; names resolve on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trivium.api import LLM, AsyncLLM, CompletionOutput, LoRARequest, RequestOutput, ToolCall
    from trivium.config.retention import RangeRetention, Retention
    from trivium.config.sampling import SamplingParams
    from trivium.config.structured import StructuredOutputs
    from trivium.engine.messages import Delta
    from trivium.sampling.batch import TokenLogprobs

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Delta",
    "LoRARequest",
    "RangeRetention",
    "RequestOutput",
    "Retention",
    "SamplingParams",
    "StructuredOutputs",
    "TokenLogprobs",
    "ToolCall",
    "__version__",
]

_HOMES = {
    "LLM": "trivium.api",
    "AsyncLLM": "trivium.api",
    "CompletionOutput": "trivium.api",
    "LoRARequest": "trivium.api",
    "RequestOutput": "trivium.api",
    "ToolCall": "trivium.api",
    "RangeRetention": "trivium.config.retention",
    "Retention": "trivium.config.retention",
    "SamplingParams": "trivium.config.sampling",
    "StructuredOutputs": "trivium.config.structured",
    "Delta": "trivium.engine.messages",
    "TokenLogprobs": "trivium.sampling.batch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trivium' has no attribute '{name}'")
    from importlib import import_module  # noqa: PLC0415  (lazy on purpose: see the module docstring)

    return getattr(import_module(_HOMES[name]), name)
