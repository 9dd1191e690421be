"""What system tests share: the command line, run in this process, and the executor that users get.

A module that needs the slow executor says so: `EXECUTOR = "reference"`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.command_line import trivium as trivium

_VARIABLE = "TRIVIUM_EXECUTOR"


@pytest.fixture(autouse=True, scope="module")
def executor_of_users(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let engines of this module choose their executor as they do outside of tests, unless the module names one."""
    before = os.environ[_VARIABLE]
    os.environ[_VARIABLE] = getattr(request.module, "EXECUTOR", "auto")
    yield
    os.environ[_VARIABLE] = before
