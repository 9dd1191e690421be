"""The four measures on logprobs that are written out."""

from __future__ import annotations

from typing import Any

import pytest

import trivium.lang as sgl
from trivium.base.errors import InvalidParameterError, ProgramError
from trivium.lang.choices import METHODS, ChoicesDecision, ChoicesSamplingMethod, mean_logprob, method_of

LONG, SHORT, EVEN = [-2.0, -0.1, -0.1, -0.1], [-1.0], [-1.0, -1.5]


def decide(name: str, rows: dict[str, list[float | None]], alone: list[list[float | None]] | None = None) -> str:
    def shaped(values: list[list[float | None]]) -> Any:
        return [[(each, idx, None) for idx, each in enumerate(row)] for row in values]

    made = shaped(list(rows.values()))
    return METHODS[name](
        choices=list(rows),
        normalized_prompt_logprobs=[mean_logprob(row) for row in made],
        input_token_logprobs=made,
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=None if alone is None else shaped(alone),
    ).decision


def test_each_measure_takes_its_own_best() -> None:
    rows: Any = {"long": LONG, "short": SHORT, "even": EVEN}
    assert decide("token_length_normalized", rows) == "long"
    assert decide("joint_probability", rows) == "short"
    assert decide("greedy_token_selection", rows) == "short"  # ends early, and goes on with its mean
    alone: Any = [[None, -0.1, -0.1, -0.1], [-1.0], [-9.0, -1.5]]
    assert decide("unconditional_likelihood_normalized", rows, alone) == "even"


def test_the_first_of_equals_is_taken() -> None:
    for name in ("token_length_normalized", "joint_probability", "greedy_token_selection"):
        assert decide(name, {"a": [-1.0], "b": [-1.0]}) == "a"


def test_tokens_without_a_logprob_do_not_count() -> None:
    assert mean_logprob([(None, 1, None), (-2.0, 2, None)]) == -2.0
    with pytest.raises(InvalidParameterError, match="write a text before it"):
        mean_logprob([(None, 1, None)])


def test_methods_go_by_name_too() -> None:
    assert method_of("joint_probability") is sgl.joint_probability
    assert set(METHODS) <= set(sgl.__all__)


class Last(ChoicesSamplingMethod):
    def __call__(self, *, choices: list[str], **rest: Any) -> ChoicesDecision:
        return ChoicesDecision(choices[-1], {"seen": sorted(rest)})


def test_a_measure_may_be_the_authors() -> None:
    @sgl.function
    def pick(s: Any) -> None:
        s += "x" + sgl.select("a", ["1", "2"], choices_method=Last())
        s += sgl.select("b", ["1", "2"], choices_method=lambda **_: ChoicesDecision("3"))

    state = pick.run(backend=sgl.ScriptedBackend())
    assert state["a"] == "2"
    assert state.get_meta_info("a")["seen"] == [
        "input_token_logprobs",
        "normalized_prompt_logprobs",
        "output_token_logprobs",
        "unconditional_token_logprobs",
    ]
    with pytest.raises(ProgramError, match="chose '3', which is no choice"):
        _ = state["b"]
