"""Names that SGLang's programs know and that are not here yet: using one says so, instead of doing something else."""

from __future__ import annotations

from typing import Any, NoReturn

from trivium.base.errors import UnsupportedFeatureError

REASONS = {
    "ServerArgs": "ServerArgs is not supported; options are arguments of Engine, Runtime and trivium.LLM",
    "LiteLLM": "LiteLLM is not supported as a backend; its proxy speaks OpenAI's API: OpenAI(model, base_url=...)",
    "VertexAI": "VertexAI is not supported as a backend; Vertex AI speaks OpenAI's API too: "
    "OpenAI(model, base_url=<the project's .../endpoints/openapi>, api_key=<an access token>)",
}


def image(expr: object) -> NoReturn:
    """Refuse: models here take text only.

    Raises:
        UnsupportedFeatureError: Always.
    """
    raise UnsupportedFeatureError("image is not supported: models take text only; describe the image", param="image")


def video(path: str, num_frames: int) -> NoReturn:
    """Refuse: models here take text only.

    Raises:
        UnsupportedFeatureError: Always.
    """
    raise UnsupportedFeatureError("video is not supported: models take text only; describe the video", param="video")


def refusing(name: str) -> Any:
    """Return what refuses to be called, by name."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedFeatureError(REASONS[name], param=name)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Refuse: {REASONS[name]}."
    return refuse
