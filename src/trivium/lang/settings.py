"""`global_config`: SGLang's settings of its language, as far as there is something to set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from trivium.base.errors import UnsupportedFeatureError
from trivium.lang.backends.choice import default_backend, set_default_backend
from trivium.lang.effects import Effects, effects

_FIXED: Mapping[str, tuple[Any, str]] = {
    "verbosity": (0, "print state.text() for the text of a run"),
    "skip_special_tokens_in_output": (True, "special tokens are never part of a program's text"),
    "spaces_between_special_tokens_in_out": (True, "special tokens are never part of a program's text"),
}
"""Settings with one value, and why there is no other."""
_WITHOUT_EFFECT: Mapping[str, bool] = {"enable_parallel_encoding": True}
"""How SGLang saves work, with the same answers: what programs share is found in the prefix cache whatever this says."""
_EFFECTS = tuple(each.name for each in fields(Effects))


class GlobalConfig:
    """Settings of all programs of this process."""

    def __init__(self) -> None:
        self._switches = dict(_WITHOUT_EFFECT)

    @property
    def default_backend(self) -> Any:
        """What programs run on, as `set_default_backend` sets it; `None` where nothing is set."""
        return default_backend()

    def __getattr__(self, name: str) -> Any:
        """Return a setting.

        Raises:
            AttributeError: There is none of that name.
        """
        if name in _FIXED:
            return _FIXED[name][0]
        if name in _WITHOUT_EFFECT:
            return self._switches[name]
        if name in _EFFECTS:
            return getattr(effects, name)
        known = ", ".join(("default_backend", *_FIXED, *_WITHOUT_EFFECT, *_EFFECTS))
        raise AttributeError(
            f"global_config has no {name}; it has {known}; options of a model are those of trivium.LLM"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a setting.

        Raises:
            UnsupportedFeatureError: It has one value only.
            AttributeError: There is none of that name.
        """
        if name == "default_backend":
            set_default_backend(value)
        elif name == "_switches":
            object.__setattr__(self, name, value)
        elif name in _WITHOUT_EFFECT:
            self._switches[name] = bool(value)
        elif name in _EFFECTS:
            setattr(effects, name, bool(value))
        elif value != getattr(self, name):
            raise UnsupportedFeatureError(
                f"global_config.{name} is {_FIXED[name][0]!r} and cannot be {value!r}: {_FIXED[name][1]}", param=name
            )


global_config = GlobalConfig()
