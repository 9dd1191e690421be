"""Machines: told apart by everything that a timing depends on; limits that make sense."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from trivium.base.errors import ConfigError
from trivium.kernels import native
from trivium.plan import machine
from trivium.plan.machine import Machine, measure_limits, processor_name, this_machine

MACHINE = Machine(processor="Test 9000", isa="avx2", threads=2, kernels="k1", compiler="GNU")


@pytest.mark.parametrize("field", [field.name for field in fields(Machine)])
def test_every_field_is_in_the_digest(field: str) -> None:
    changed = replace(MACHINE, **{field: 99 if field == "threads" else "other"})
    assert changed.digest != MACHINE.digest
    assert replace(MACHINE).digest == MACHINE.digest


def test_this_machine_is_what_the_kernels_say() -> None:
    found, described = this_machine(), native.describe()
    assert (found.isa, found.threads, found.compiler) == (described.isa, described.threads, described.compiler)
    assert found.processor
    assert found.kernels == native.kernel_version()
    assert str(found).startswith(f"{found.processor}, {found.isa}, ")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 3: 2 GHz\nmodel name\t: other\n", "Some CPU @ 3: 2 GHz"),
        ("Hardware : board\n", None),
        (None, None),
    ],
)
def test_the_processor_is_named_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str | None
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "cpuinfo")
    processor_name.cache_clear()
    try:
        assert processor_name() == name or name is None
        assert processor_name()
    finally:
        processor_name.cache_clear()


def test_limits_are_measured_by_the_kernels() -> None:
    if not native.describe().is_present:
        pytest.skip("needs the native module")
    limits = measure_limits()
    assert limits.memory_bytes > 0
    assert limits.cache_bytes > 0
    assert all(rate > 0 for rate in limits.operations.values())
    assert set(limits.operations) == {"int8", "bf16", "f32"}


def test_without_kernels_there_is_nothing_to_measure_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    with pytest.raises(ConfigError, match="native kernels, which are not here"):
        measure_limits()
