"""Environment variables are typed: unset means default, a bad value is an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivium.base import env
from trivium.base.errors import ConfigError


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_a_flag_is_true_in_four_spellings(text: str) -> None:
    assert env.REQUIRE_NATIVE.read({"TRIVIUM_REQUIRE_NATIVE": text}) is True


@pytest.mark.parametrize("text", ["0", "False", "no", "off", "", "  "])
def test_a_flag_is_false_in_four_spellings_and_when_empty(text: str) -> None:
    assert env.REQUIRE_NATIVE.read({"TRIVIUM_REQUIRE_NATIVE": text}) is False


def test_an_unset_variable_has_its_default() -> None:
    assert [variable.read({}) for variable in env.VARIABLES] == [variable.default for variable in env.VARIABLES]


@pytest.mark.parametrize(
    ("name", "text"),
    [("TRIVIUM_ISA", "sse9"), ("TRIVIUM_REQUIRE_NATIVE", "maybe"), ("TRIVIUM_WHEEL_DIR", "/no/such/directory")],
)
def test_a_bad_value_is_an_error_that_names_variable_and_value(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is '{text}'; it must be"):
        env.check_all({name: text})


def test_a_path_starting_with_a_tilde_is_in_the_home_directory() -> None:
    assert env.CACHE_DIR.read({"TRIVIUM_CACHE_DIR": "~/models"}) == Path.home() / "models"


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_ISA", "avx2")
    assert env.ISA.read() == "avx2"


def test_names_in_the_table_are_unique() -> None:
    names = [variable.name for variable in env.VARIABLES]
    assert len(names) == len(set(names))
