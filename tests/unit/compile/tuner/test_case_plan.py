"""Plans of single products: legal, of exactly the case's sizes, for every format and epilogue."""

from __future__ import annotations

import pytest

from trivium.compile.formats import FORMATS
from trivium.compile.tuner.case_plan import case_plan
from trivium.compile.tuner.space import Case, Site, find_work, with_tactics
from trivium.plan.check import check_plan

COLUMNS = {"store": (96, 32, 32), "add": (64,), "gated": (96, 96)}


@pytest.mark.parametrize("epilogue", COLUMNS)
@pytest.mark.parametrize("form", FORMATS)
def test_the_plan_of_a_case_is_legal_and_has_that_case_alone(form: str, epilogue: str) -> None:
    columns = COLUMNS[epilogue]
    site = Site(epilogue, 288, columns, (form,) * len(columns), FORMATS[form].operand)
    plan = case_plan(Case(site, 7), 3)
    check_plan(plan)
    found = [work.case for work in find_work(plan)]
    assert {case.site for case in found} == {site}
    assert max(case.num_rows for case in found) == 7
    products = plan.programs["base"].instructions[-3:]
    assert len({instruction.weights[next(iter(instruction.weights))] for instruction in products}) == 3
    assert {name for each in products for name in each.writes.values()} == {"out"}


def test_tactics_are_set_as_in_a_models_plan() -> None:
    case = Case(Site("store", 64, (32,), ("i4m_g32",), "q8"), 16)
    plan = with_tactics(case_plan(case, 2), {case: "unpacked"})
    check_plan(plan)
    assert [each.tactic for each in plan.programs["base"].instructions[-2:]] == [
        {"kernel": "unpacked", "4": "auto"}
    ] * 2


def test_parts_of_several_formats_share_their_operand() -> None:
    site = Site("store", 256, (64, 32), ("q4_k", "q6_k"), "q8")
    plan = case_plan(Case(site, 4), 1)
    check_plan(plan)
    operand = next(buffer for buffer in plan.buffers if buffer.name == "operand")
    assert len(operand.sums) == 2
    assert plan.programs["base"].instructions[-1].attrs["sums"] == (0, 1)
