"""Floor 4: architectures: how a configuration is read, and each architecture's layer as a function over graph ops."""

from __future__ import annotations

from trivium.config.model import ModelConfig
from trivium.ir.graph import Graph
from trivium.models.decoder import build_decoder
from trivium.models.kv import kv_spec
from trivium.models.parse import parse_config
from trivium.models.registry import architecture_named, known_architectures

__all__ = ["build_graph", "known_architectures", "kv_spec", "parse_config"]


def build_graph(config: ModelConfig) -> Graph:
    """Write the model as a graph with one output, `logits` [R, V].

    Raises:
        UnknownArchitectureError: There is no definition for `config.architecture`.
    """
    return build_decoder(config, architecture_named(config.architecture).layer)
