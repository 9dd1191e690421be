"""What `trivium` exports, and that importing it stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trivium


def test_every_public_name_is_there() -> None:
    for name in trivium.__all__:
        assert getattr(trivium, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        trivium.Nothing  # noqa: B018


def test_importing_the_api_loads_no_arrays_templates_or_terminals() -> None:
    heavy = {"numpy", "jinja2", "rich", "tokenizers", "msgspec", "zmq", "asyncio"}
    code = f"import sys, trivium.api; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
    assert done.stdout.strip() == "[]"
