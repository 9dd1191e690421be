"""KV memory is planned from the tightest limit above the process, and the plan says why."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from trivium.base.errors import ConfigError
from trivium.cache.spec import KVGroup, KVSpec
from trivium.config.options import CacheOptions
from trivium.kernels import gemm
from trivium.runtime.arrays import NumpyLibrary
from trivium.runtime.memory import Machine, available_bytes, plan_kv

MIB = 1 << 20
SPEC = KVSpec(groups=(KVGroup("full", (0, 1), 1024), KVGroup("window", (2,), 512, window=64)), page_len=16)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A host with 8 GiB left and no cgroup limit."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    _write(tmp_path / "proc" / "meminfo", f"MemTotal: 99999999 kB\nMemAvailable: {8 * 1024 * 1024} kB\n")
    return Machine(proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _group(folder: Path, limit: object, used: int, inactive: int = 0) -> None:
    _write(folder / "memory.max", f"{limit}\n")
    _write(folder / "memory.current", f"{used}\n")
    _write(folder / "memory.stat", f"anon 1\ninactive_file {inactive}\n")


def test_without_limits_the_host_decides(machine: Machine) -> None:
    assert available_bytes(machine) == 8192 * MIB


def test_the_tightest_group_above_the_process_decides(machine: Machine) -> None:
    _write(machine.proc / "self" / "cgroup", "0::/pod/container\n")
    _group(machine.cgroups / "pod", 2048 * MIB, 500 * MIB)
    _group(machine.cgroups / "pod" / "container", 4096 * MIB, 100 * MIB)

    assert available_bytes(machine) == 1548 * MIB


def test_page_cache_that_the_kernel_gives_up_counts_as_free(machine: Machine) -> None:
    _write(machine.proc / "self" / "cgroup", "0::/\n")
    _group(machine.cgroups, 1000 * MIB, 900 * MIB, inactive=300 * MIB)

    assert available_bytes(machine) == 400 * MIB


def test_a_group_without_a_limit_decides_nothing(machine: Machine) -> None:
    _write(machine.proc / "self" / "cgroup", "0::/pod\n")
    _group(machine.cgroups / "pod", "max", 500 * MIB)

    assert available_bytes(machine) == 8192 * MIB


def test_version_one_groups_count_their_whole_tree(machine: Machine) -> None:
    _write(machine.proc / "self" / "cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    folder = machine.cgroups / "memory" / "docker" / "abc"
    _write(folder / "memory.limit_in_bytes", str(1024 * MIB))
    _write(folder / "memory.usage_in_bytes", str(600 * MIB))
    _write(folder / "memory.stat", f"inactive_file 7\ntotal_inactive_file {100 * MIB}\n")

    assert available_bytes(machine) == 524 * MIB


def test_a_limit_on_the_address_space_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 300 * MIB // resource.getpagesize()
    _write(machine.proc / "self" / "statm", f"{pages} 1 1 1 0 1 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000 * MIB, 1000 * MIB))

    assert available_bytes(machine) == 700 * MIB


def test_a_small_machine_gets_a_share_of_what_the_weights_leave() -> None:
    budget = plan_kv(SPEC, CacheOptions(kv_cache_fraction=0.5), weight_bytes=600 * MIB, available=2048 * MIB)

    pages = 724 * MIB // (1536 * 16)
    assert budget.num_pages == (pages, pages)
    assert budget.num_tokens == pages * 16
    assert budget.num_bytes == pages * 1536 * 16
    assert "0.5 (kv_cache_fraction) of 1.41 GiB left (2.00 GiB available - 600.00 MiB weights)" in budget.explanation


def test_pages_on_their_way_to_the_tiers_take_their_memory_from_the_share() -> None:
    options = CacheOptions(kv_cache_fraction=0.5)
    budget = plan_kv(SPEC, options, weight_bytes=600 * MIB, transfer_bytes=192 * MIB, available=2048 * MIB)

    assert budget.num_tokens == 628 * MIB // (1536 * 16) * 16
    assert "weights - 192.00 MiB for pages on their way to the tiers below)" in budget.explanation


def test_a_stated_size_outranks_the_share() -> None:
    budget = plan_kv(SPEC, CacheOptions(kv_cache_memory="24MiB"), weight_bytes=0, available=1)

    assert budget.num_tokens == 24 * MIB // 1536


@pytest.mark.parametrize("available", [0, 100 * MIB, 600 * MIB])
def test_too_little_memory_is_an_error_with_the_numbers(available: int) -> None:
    with pytest.raises(ConfigError, match=r"holds 0 pages.*at least 5 are needed.*--kv-cache-memory"):
        plan_kv(SPEC, CacheOptions(), weight_bytes=600 * MIB, available=available)


def test_memory_that_cannot_be_had_is_an_error_that_says_how_much() -> None:
    with pytest.raises(ConfigError, match=r"TiB of KV memory cannot be had"):
        NumpyLibrary(gemm).sparse_zeros((1 << 58,))
