"""Configuration files: YAML or TOML, keys as options are named, flat or under the names of their sections.

max_num_seqs: 16            # flat
cache:                      # or in a section
  kv-cache-memory: 512MiB   # dashes and underscores are the same
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trivium.base.errors import ConfigError


def read_file(path: Path, sections: Mapping[str, frozenset[str]]) -> dict[str, Any]:
    """Read a file into option names and values; names are not checked against the options.

    Args:
        path: A .yaml, .yml, .json or .toml file.
        sections: Names that may head a section, and the options that may stand in each.

    Raises:
        ConfigError: The file cannot be read, is malformed, or says the same option twice.
    """
    found: dict[str, Any] = {}
    for key, value in _load(path).items():
        name = _name(key)
        if isinstance(value, Mapping) and name in sections:
            for inner_key, inner in value.items():
                inner_name = _name(inner_key)
                if inner_name not in sections[name]:
                    allowed = ", ".join(sorted(sections[name]))
                    raise ConfigError(f"{path}: section {name} has no option '{inner_key}'; it has: {allowed}")
                _enter(found, path, inner_name, inner)
        else:
            _enter(found, path, name, value)
    return found


def _enter(found: dict[str, Any], path: Path, name: str, value: Any) -> None:
    if name in found:
        raise ConfigError(f"{path}: {name} is set twice")
    found[name] = value


def _name(key: object) -> str:
    return str(key).replace("-", "_")


def _load(path: Path) -> Mapping[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
    if path.suffix not in {".yaml", ".yml", ".json"}:
        raise ConfigError(f"{path}: a configuration file ends in .yaml, .yml, .json or .toml")
    return _load_yaml(path, text)


def _load_yaml(path: Path, text: str) -> Mapping[Any, Any]:
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  (start-up time)

    class UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a key that is there twice, of which YAML would silently keep the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise ConfigError(f"{path}: {twice} is set twice")
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return mapping

    try:
        document = yaml.load(text, UniqueKeys)  # noqa: S506  (a SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} holds a {type(document).__name__}; it must be a mapping of options")
    return document
