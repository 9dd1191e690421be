"""Identities and small closed vocabularies that every floor shares."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

TokenId = NewType("TokenId", int)
PageId = NewType("PageId", int)
RequestId = NewType("RequestId", str)


class FinishReason(StrEnum):
    """Why a request ended; the first three are the OpenAI API's words."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"
