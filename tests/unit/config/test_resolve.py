"""Options: layers and their order, origins, names, limits, secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trivium.base.env import VARIABLES
from trivium.base.errors import ConfigError
from trivium.config.limits import RANGES
from trivium.config.options import EngineOptions, ServerOptions
from trivium.config.record import options_of
from trivium.config.resolve import RECORDS, options_from, resolve

ALL = [option for record in RECORDS for option in options_of(record)]


def test_every_layer_overrides_the_one_before_it(tmp_path: Path) -> None:
    file = tmp_path / "trivium.yaml"
    file.write_text("max_num_seqs: 2\nport: 2\nmax_queue: 2\n")
    environ = {"TRIVIUM_MAX_QUEUE": "3", "TRIVIUM_PORT": "3"}
    settings = resolve(flags={"port": "4"}, file=file, environ=environ)
    seen = {name: (settings[name], settings.by_name[name].origin) for name in ("page_len", "max_num_seqs", "max_queue")}
    assert seen == {
        "page_len": (16, "default"),
        "max_num_seqs": (2, str(file)),
        "max_queue": (3, "TRIVIUM_MAX_QUEUE"),
    }
    assert (settings["port"], settings.by_name["port"].origin) == (4, "--port")


def test_without_any_layer_the_records_have_their_defaults() -> None:
    settings = resolve(environ={})
    assert settings.build(EngineOptions) == EngineOptions()
    assert settings.build(ServerOptions) == ServerOptions()


TEXTS = {
    "kv_cache_memory": "1GiB",
    "host_cache": "2GiB",
    "grammar_cache_memory": "64MiB",
    "disk_cache": "/var/kv:20",
    "lora": "sql=/srv/lora/sql,poet=/srv/lora/poet",
    "lora_root": "/usr",
    "device": "cpu",
    "tenant_weight": "a=2",
}
BESIDE = {
    "preemption": {"TRIVIUM_DISK_CACHE": "/var/kv:20"},
    "preempt_for_priority": {"TRIVIUM_ORDER": "priority"},
    "tenant_weight": {"TRIVIUM_FAIR_SHARE": "yes"},
    "ttft_target": {"TRIVIUM_TPOT_TARGET": "0.1"},
}
"""What options need beside them."""


def another_text(option: Any, file: Path) -> str:
    if option.name in TEXTS:
        return TEXTS[option.name]
    if option.choices:
        return str(option.choices[-1])
    if option.kind in {int, float}:
        return f"{RANGES[option.name][0] + 1:g}" if option.kind is int else "0.25"
    return {Path: str(file), bool: "no" if option.default else "yes"}.get(option.kind, "x")


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.name)
def test_every_option_is_documented_and_set_by_its_variable(option: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    environ = {option.variable: another_text(option, file), **BESIDE.get(option.name, {})}
    if option.name.startswith("ssl_"):
        environ |= {"TRIVIUM_SSL_CERTFILE": str(file), "TRIVIUM_SSL_KEYFILE": str(file)}
    setting = resolve(environ=environ).by_name[option.name]
    assert option.meaning.endswith(".")
    assert setting.origin == option.variable
    assert setting.value != option.default or option.name == "device"


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=0", "a=-1", "a=nan", "a=1001", "a=1,a=2"])
def test_weights_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tenant_weight"):
        resolve(environ={"TRIVIUM_TENANT_WEIGHT": text, "TRIVIUM_FAIR_SHARE": "yes"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("preempt_for_priority", "yes"),
        ("tenant_weight", "a=1"),
        ("ttft_target", "1"),
    ],
)
def test_options_that_would_have_no_effect_alone_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        resolve(environ={f"TRIVIUM_{name.upper()}": text})


def test_names_of_options_and_of_other_variables_do_not_collide() -> None:
    names = [option.name for option in ALL]
    assert len(set(names)) == len(names)
    shared = {option.variable for option in ALL} & {variable.name for variable in VARIABLES}
    assert shared == {"TRIVIUM_CACHE_DIR"}  # the same directory, told twice


@pytest.mark.parametrize("option", [option for option in ALL if option.kind in {int, float}], ids=lambda o: o.name)
def test_every_number_has_a_range_and_is_held_to_it(option: Any) -> None:
    low, high = RANGES[option.name]
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError) as caught:
            resolve(arguments={option.name: option.kind(value)}, environ={})
        assert option.name in str(caught.value)
        assert "argument" in str(caught.value)
        assert "must be from" in str(caught.value)


@pytest.mark.parametrize("value", [64, "64"])
def test_choices_in_digits_may_be_numbers(value: object) -> None:
    assert resolve(arguments={"activation_group": value}, environ={})["activation_group"] == "64"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"page_len": "sixteen"}, r"page_len is 'sixteen' \(from --page-len\); it must be a whole number"),
        ({"kv_cache_fraction": "nan"}, "kv_cache_fraction is 'nan'.*a number"),
        ({"kv_cache_memory": "12 parsecs"}, "kv_cache_memory.*--kv-cache-memory.*512MiB"),
        ({"log_format": "xml"}, "log_format is 'xml'.*one of text, json"),
        ({"api_key_file": "/nowhere"}, "api_key_file.*a file that exists"),
        ({"ssl_certfile": __file__}, "ssl_certfile and ssl_keyfile belong together"),
        ({"device": "cuda"}, "torch"),
        ({"executor": "native", "array_library": "torch"}, "array_library is of the reference executor"),
        ({"executor": "reference", "weights": "int8"}, "weights is 'int8'.*multiplies in float32; leave weights out"),
        ({"activation_group": "48"}, "activation_group is '48'.*one of 32, 64"),
        ({"executor": "reference", "activation_group": "64"}, "activation_group is '64'.*rounds no activations"),
        ({"executor": "reference", "kv_cache_dtype": "bf16"}, "kv_cache_dtype is 'bf16'.*keys and values in float32"),
        ({"executor": "reference", "plan": "/plan"}, "plan is '/plan'.*runs no plan"),
        ({"model": " "}, "model.*not empty"),
        ({"max_num_seq": "3"}, "no option 'max_num_seq'; did you mean max_num_seqs"),
    ],
)
def test_a_bad_value_is_refused_with_name_origin_and_limit(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(flags=flags, environ={})


def test_flags_repeat_and_split_at_commas() -> None:
    settings = resolve(flags={"served_model_name": ["a,b", "c"]}, environ={})
    assert settings["served_model_name"] == ("a", "b", "c")


def test_none_unsets_an_optional_option_and_nothing_else() -> None:
    settings = resolve(flags={"max_model_len": "none"}, environ={"TRIVIUM_MAX_MODEL_LEN": "5"})
    assert settings["max_model_len"] is None
    with pytest.raises(ConfigError, match="page_len"):
        resolve(flags={"page_len": "none"}, environ={})


def test_an_empty_variable_is_not_set() -> None:
    assert resolve(environ={"TRIVIUM_PORT": " "}).by_name["port"].origin == "default"


def test_a_misspelt_variable_is_reported_with_a_guess() -> None:
    assert resolve(environ={"TRIVIUM_PORTS": "1", "TRIVIUM_ISA": "avx2"}).unknown_variables == (
        "TRIVIUM_PORTS; did you mean TRIVIUM_PORT?",
    )


def test_secrets_are_masked_where_they_are_shown_and_in_errors() -> None:
    settings = resolve(flags={"api_key": ["alice=s3cret", "b4re"]}, environ={})
    assert settings.by_name["api_key"].shown == "alice=****, ****"
    assert {"s3cret", "b4re"} <= set(settings.secrets())
    with pytest.raises(ConfigError) as caught:
        resolve(arguments={"api_key": [12345]}, environ={})
    assert "12345" not in str(caught.value)


def test_python_arguments_take_the_types_of_the_options() -> None:
    options = options_from({"model": "x", "cache_dir": "somewhere", "kv_cache_fraction": 0, "kv_cache_memory": 4096})
    assert options.model.cache_dir == Path("somewhere")
    assert options.cache.kv_cache_fraction == 0.0
    assert options.cache.kv_cache_memory == "4096"
    for bad in ({"page_len": True}, {"page_len": 1.5}, {"offline": 1}, {"executor": "fast"}, {"model": None}):
        with pytest.raises(ConfigError):
            options_from(bad)


def test_python_arguments_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVIUM_MAX_NUM_SEQS", "3")
    assert options_from({}).schedule.max_num_seqs == EngineOptions().schedule.max_num_seqs
