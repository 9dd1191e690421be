"""Floor 8: the engine in a caller's process. `LLM` runs it in the caller's threads, `AsyncLLM` in one of its own.

>>> from trivium import LLM, SamplingParams
>>> with LLM("smollm2") as llm:                                                  # doctest: +SKIP
...     [answer] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))
...     print(answer.outputs[0].text)
"""

from __future__ import annotations

from trivium.api.async_llm import AsyncLLM
from trivium.api.llm import LLM
from trivium.api.lora import LoRARequest
from trivium.api.outputs import Answers, CompletionOutput, RequestOutput, ToolCall
from trivium.api.prompts import Message, Prompt

__all__ = [
    "LLM",
    "Answers",
    "AsyncLLM",
    "CompletionOutput",
    "LoRARequest",
    "Message",
    "Prompt",
    "RequestOutput",
    "ToolCall",
]
