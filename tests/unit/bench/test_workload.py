"""The same options make the same prompts, and kinds of workload relate their prompts as they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trivium.base.errors import ConfigError
from trivium.bench.options import WorkloadOptions
from trivium.bench.workload import make_workload

OPTIONS = WorkloadOptions(num_requests=3, prompt_len=5, prefix_len=4, turns=2)


def test_a_seed_decides_every_prompt() -> None:
    assert make_workload(OPTIONS) == make_workload(OPTIONS)
    assert make_workload(OPTIONS) != make_workload(replace(OPTIONS, workload_seed=1))


def test_shared_prefix_prompts_share_exactly_their_prefix() -> None:
    prompts = [request.prompts[0] for request in make_workload(replace(OPTIONS, workload="shared-prefix"))]

    heads = {prompt.split("\n")[0] for prompt in prompts}
    tails = {prompt.split("\n")[1] for prompt in prompts}
    assert len(heads) == 1
    assert len(heads.pop().split()) == 4
    assert len(tails) == 3


def test_conversations_have_their_number_of_turns() -> None:
    assert {len(request.prompts) for request in make_workload(replace(OPTIONS, workload="multi-turn"))} == {2}


def test_a_file_is_repeated_until_there_are_enough_requests(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"messages": [{"role": "user", "content": "b"}]}))

    requests = make_workload(replace(OPTIONS, workload="file", prompts_file=path))

    assert [request.prompts for request in requests] == [("a",), (), ("a",)]
    assert requests[1].messages == ({"role": "user", "content": "b"},)


@pytest.mark.parametrize(("text", "reason"), [("{", "not JSON"), ('{"x": 1}', "neither"), ("", "no prompts")])
def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=reason):
        make_workload(replace(OPTIONS, workload="file", prompts_file=path))
