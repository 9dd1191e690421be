"""Names that SGLang's programs know and that are not here yet: using one says so, instead of doing something else."""

from __future__ import annotations

from typing import Any, NoReturn

from trivium.base.errors import UnsupportedFeatureError

REASONS = {
    "image": "image is not supported: models take text only",
    "video": "video is not supported: models take text only",
    "ServerArgs": "ServerArgs is not supported; options are arguments of Engine, Runtime and trivium.LLM",
    "LiteLLM": "LiteLLM is not supported as a backend; its proxy speaks OpenAI's API: OpenAI(model, base_url=...)",
    "VertexAI": "VertexAI is not supported as a backend; Vertex AI speaks OpenAI's API too: "
    "OpenAI(model, base_url=<the project's .../endpoints/openapi>, api_key=<an access token>)",
}


def refusing(name: str) -> Any:
    """Return what refuses to be called, by name."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedFeatureError(REASONS[name], param=name)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Refuse: {REASONS[name]}."
    return refuse
