"""Every name of SGLang's language is here, with its arguments in their order and their defaults, and acts.

The tables say what a program may write that begins with `import sglang as sgl` (0.5.23). An argument of ours that
SGLang lacks must be given by name, so that no position changes its meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import pytest

import trivium.lang as sgl
from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError
from trivium.lang import ProgramState, ProgramStateGroup, ScriptedBackend, SglFunction

MUST, REST = "must be given", "any more"
"""In place of a default: the argument has none; the arguments that follow are collected."""

GEN_ARGUMENTS = (
    "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "return_text_in_logprobs",
)  # fmt: skip
GEN_FORMS = ("dtype", "choices", "choices_method", "regex", "json_schema")
SHORT_GEN = dict.fromkeys(("name", "max_tokens", "n", *GEN_ARGUMENTS))
RUN: dict[str, Any] = {
    "max_new_tokens": 128, "n": 1, "stop": None, "stop_token_ids": None, "stop_regex": None, "temperature": 1.0,
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "ignore_eos": False,
    "return_logprob": None, "logprob_start_len": None, "top_logprobs_num": None, "return_text_in_logprobs": None,
}  # fmt: skip

FUNCTIONS: Mapping[str, Mapping[str, Any]] = {
    "function": {"func": None, "num_api_spec_tokens": None},
    "gen": dict.fromkeys(
        ("name", "max_tokens", "min_tokens", "n", *GEN_ARGUMENTS, *GEN_FORMS)
    ),
    "gen_int": SHORT_GEN,
    "gen_string": SHORT_GEN,
    "select": {"name": None, "choices": None, "temperature": 0.0, "choices_method": sgl.token_length_normalized},
    "image": {"expr": MUST},
    "video": {"path": MUST, "num_frames": MUST},
    **{name: {"expr": None} for name in ("system", "user", "assistant")},
    **{f"{name}_{end}": {} for name in ("system", "user", "assistant") for end in ("begin", "end")},
    "separate_reasoning": {"expr": None, "model_type": None},
    "set_default_backend": {"backend": MUST},
    "flush_cache": {"backend": None, "empty_cache": True},
    "get_server_info": {"backend": None},
    "OpenAI": {
        "model_name": MUST, "is_chat_model": None, "chat_template": None, "is_azure": False, "args": REST,
        "kwargs": REST,
    },
    "Anthropic": {"model_name": MUST, "args": REST, "kwargs": REST},
    "Crusoe": {"model_name": MUST, "api_key": None, "base_url": None, "chat_template": None, "kwargs": REST},
}  # fmt: skip
METHODS: Mapping[tuple[type, str], Mapping[str, Any]] = {
    (SglFunction, "run"): {
        "args": REST, **RUN, "stream": False, "backend": None, "use_thread": True, "kwargs": REST
    },
    (SglFunction, "run_batch"): {
        "batch_kwargs": MUST, **RUN, "backend": None, "num_threads": "auto", "progress_bar": False,
        "generator_style": False,
    },
    (SglFunction, "bind"): {"kwargs": REST},
    (SglFunction, "trace"): {"backend": None, "kwargs": REST},
    (SglFunction, "cache"): {"backend": None},
    (ProgramState, "text"): {},
    (ProgramState, "messages"): {},
    (ProgramState, "sync"): {},
    (ProgramState, "error"): {},
    (ProgramState, "get_var"): {"name": MUST},
    (ProgramState, "set_var"): {"name": MUST, "value": MUST},
    (ProgramState, "get_meta_info"): {"name": MUST},
    (ProgramState, "text_iter"): {"var_name": None},
    (ProgramState, "text_async_iter"): {"var_name": None, "return_meta_data": False},
    (ProgramState, "fork"): {"size": 1, "position_ids_offset": None},
    (ProgramState, "copy"): {"position_ids_offset": None},
    (ProgramState, "var_scope"): {"name": MUST},
    (ProgramState, "system"): {"expr": None},
    (ProgramState, "user"): {"expr": None},
    (ProgramState, "assistant"): {"expr": None},
    (ProgramStateGroup, "join"): {"mode": "gather_variable"},
}  # fmt: skip
OTHER_NAMES = (
    "Runtime", "RuntimeEndpoint", "Engine", "ServerArgs", "LiteLLM", "VertexAI", "global_config",
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized",
)  # fmt: skip


def arguments_of(function: Any) -> dict[str, tuple[Any, bool]]:
    """Name to default, and whether it may be given by position."""
    found = {}
    for name, each in inspect.signature(function).parameters.items():
        is_rest = each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        default = REST if is_rest else MUST if each.default is each.empty else each.default
        found[name] = (default, each.kind is each.POSITIONAL_OR_KEYWORD)
    found.pop("self", None)
    return found


def assert_same(function: Any, expected: Mapping[str, Any]) -> None:
    found = arguments_of(function)
    assert [name for name in found if name in expected] == list(expected)
    assert {name: found[name][0] for name in expected} == dict(expected)
    more = {name for name, (_, by_position) in found.items() if name not in expected and by_position}
    assert more == set()


@pytest.mark.parametrize(("name", "expected"), FUNCTIONS.items(), ids=list(FUNCTIONS))
def test_a_function_takes_what_sglangs_takes(name: str, expected: Mapping[str, Any]) -> None:
    assert_same(getattr(sgl, name), expected)


@pytest.mark.parametrize(("method", "expected"), METHODS.items(), ids=[f"{k.__name__}.{n}" for k, n in METHODS])
def test_a_method_takes_what_sglangs_takes(method: tuple[type, str], expected: Mapping[str, Any]) -> None:
    assert_same(getattr(*method), expected)


@pytest.mark.parametrize("name", [*FUNCTIONS, *OTHER_NAMES])
def test_a_name_is_here(name: str) -> None:
    assert hasattr(sgl, name)
    assert name in sgl.__all__


@pytest.mark.parametrize("name", sorted(GEN_ARGUMENTS))
def test_an_argument_of_gen_goes_before_that_of_its_run_and_acts(name: str) -> None:
    values: dict[str, tuple[Any, Any]] = {
        "stop": (("a",), ("b",)), "stop_token_ids": ((1,), (2,)), "stop_regex": (("a+",), ("b+",)),
        "temperature": (0.25, 0.5), "top_p": (0.25, 0.5), "top_k": (3, 4), "min_p": (0.25, 0.5),
        "frequency_penalty": (0.25, 0.5), "presence_penalty": (0.25, 0.5), "ignore_eos": (True, False),
        "return_logprob": (True, False), "logprob_start_len": (1, 2), "top_logprobs_num": (3, 4),
        "return_text_in_logprobs": (True, False),
    }  # fmt: skip
    own, general = values[name]
    more = {} if name in {"return_logprob", "return_text_in_logprobs"} else {"return_logprob": True}
    backend = ScriptedBackend(lambda _: "x")

    def program(s: Any) -> None:
        s += "say" + sgl.gen("own", **{name: own}) + sgl.gen("general")

    state = sgl.function(program).run(backend=backend, **{name: general, **more})
    state.sync()
    first, second = backend.params
    seen = {"logprob_start_len": "prompt_logprob_start", "top_logprobs_num": "logprobs", "return_logprob": "logprobs"}
    if name == "return_text_in_logprobs":
        assert first == second
    else:
        found = [getattr(each, seen.get(name, name)) for each in (first, second)]
        assert found == ([0, None] if name == "return_logprob" else [own, general])


@pytest.mark.parametrize("dtype", ["int", "float", "bool", "str", "string", int, float, bool, str])
def test_a_type_may_be_given_by_its_name(dtype: Any) -> None:
    texts = {"int": "7", "float": "7.5", "bool": "True", "str": '"a"', "string": '"a"'}
    regexes = {"int": sgl.REGEX_INT, "float": sgl.REGEX_FLOAT, "bool": sgl.REGEX_BOOL}
    name = dtype if isinstance(dtype, str) else dtype.__name__
    backend = ScriptedBackend([texts[name]])

    def program(s: Any) -> None:
        s += sgl.gen("x", dtype=dtype)

    state = sgl.function(program).run(backend=backend)
    assert state["x"] == texts[name]
    assert type(state.get_parsed("x")).__name__ == name.replace("string", "str")
    asked = backend.params[0].structured_outputs
    assert asked is not None
    assert asked.regex == regexes.get(name, sgl.REGEX_STR)


def test_gen_of_choices_is_a_select() -> None:
    backend = ScriptedBackend(score=lambda _, letter: -1.0 if letter in "no" else -2.0)

    def program(s: Any) -> None:
        s += "say " + sgl.gen("a", choices=["yes", "no"]) + sgl.select("b", ["yes", "no"])

    state = sgl.function(program).run(backend=backend)
    assert (state["a"], state["b"]) == ("no", "no")
    assert backend.params[0].max_tokens == 0


def test_global_config_has_sglangs_settings_and_refuses_what_it_cannot_set() -> None:
    backend = ScriptedBackend(["x"])
    sgl.global_config.default_backend = backend
    assert sgl.global_config.default_backend is backend
    assert sgl.flush_cache() is True
    assert sgl.get_server_info() == {"model": "scripted"}
    sgl.set_default_backend(None)
    assert sgl.global_config.default_backend is None
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None
    assert sgl.global_config.verbosity == 0
    sgl.global_config.verbosity = 0
    with pytest.raises(UnsupportedFeatureError, match=r"print state\.text"):
        sgl.global_config.verbosity = 2
    sgl.global_config.enable_precache_with_tracing = False
    assert sgl.global_config.enable_precache_with_tracing is False
    sgl.global_config.enable_precache_with_tracing = True
    with pytest.raises(AttributeError, match="retract_decode_steps; it has default_backend"):
        sgl.global_config.retract_decode_steps = 3


def test_images_and_videos_are_refused_with_the_reason() -> None:
    for make in (lambda: sgl.image("a.png"), lambda: sgl.video("a.mp4", 4)):
        with pytest.raises(UnsupportedFeatureError, match="models take text only"):
            make()
    with pytest.raises(UnsupportedFeatureError, match="position_ids_offset"):
        sgl.function(lambda s: s.fork(2, [1, 2])).run(backend=ScriptedBackend())


def test_roles_are_a_begin_what_is_inside_and_an_end() -> None:
    def by_words(s: Any) -> None:
        s += sgl.user("a") + sgl.assistant(sgl.gen("x")) + sgl.system()

    def by_ends(s: Any) -> None:
        s += sgl.user_begin() + "a" + sgl.user_end() + sgl.assistant_begin() + sgl.gen("x") + sgl.assistant_end()
        s += sgl.system_begin() + sgl.system_end()

    def by_methods(s: Any) -> None:
        s.user("a")
        with s.assistant():
            s += sgl.gen("x")
        with s.system():
            pass

    states = [sgl.function(each).run(backend=ScriptedBackend(["b"])) for each in (by_words, by_ends, by_methods)]
    assert len({state.text() for state in states}) == 1
    assert states[0].messages() == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": ""},
    ]


def test_the_first_parameter_is_s_and_arguments_are_bound_by_name() -> None:
    with pytest.raises(InvalidParameterError, match="must be 's'"):
        sgl.function(lambda state: None)
    own = sgl.function(num_api_spec_tokens=7)(lambda s, a, b=2: s.set_var("sum", a + b))
    assert (own.arg_names, own.num_api_spec_tokens, own.bind(a=1).num_api_spec_tokens) == (["a", "b"], 7, 7)
    assert own.bind(a=1).run(b=5, backend=ScriptedBackend())["sum"] == 6
    assert own(1, backend=ScriptedBackend())["sum"] == 3
