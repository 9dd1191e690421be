"""The tiers as options: what is refused, and why; what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny_engine import tiny_loop
from trivium.base.errors import ConfigError
from trivium.config.resolve import options_from
from trivium.config.tiers import DiskCache, parse_disk_cache


@pytest.mark.parametrize(
    ("text", "limit_bytes"),
    [("/kv:20", 20 << 30), ("/kv:0.5", 1 << 29), ("/kv:500MiB", 500 << 20), ("/kv: 2GB ", 2 * 10**9)],
)
def test_a_disk_cache_is_a_path_and_a_size_in_gib(text: str, limit_bytes: int) -> None:
    assert parse_disk_cache(text, option="disk_cache") == DiskCache(Path("/kv"), limit_bytes)


def test_a_path_may_hold_colons_and_begin_at_home() -> None:
    assert parse_disk_cache("~/a:b:1", option="disk_cache").folder == Path("~/a:b").expanduser()


@pytest.mark.parametrize("text", ["/kv", "/kv:", ":20", "/kv:much", "/kv:0", "20"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="disk_cache"):
        options_from({"disk_cache": text})


def test_a_host_tier_is_refused_where_kv_memory_is_host_memory() -> None:
    with pytest.raises(ConfigError, match=r"the same memory twice\. Leave host_cache out"):
        tiny_loop(host_cache="1MiB")


@pytest.mark.parametrize("preemption", ["swap", "auto"])
def test_swapping_without_a_tier_is_refused(preemption: str) -> None:
    with pytest.raises(ConfigError, match="there is no tier to swap to; give disk_cache"):
        options_from({"preemption": preemption})


@pytest.mark.parametrize("tier", [{"disk_cache": "/kv:1"}, {"host_cache": "1GiB"}])
def test_tiers_without_a_prefix_cache_are_refused(tier: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="leave the prefix cache on"):
        options_from({"prefix_cache": False, **tier})


def test_what_is_used_is_said(tmp_path: Path) -> None:
    loop = tiny_loop(disk_cache=f"{tmp_path / 'kv'}:8MiB")
    assert loop.info["disk_cache"] == f"{tmp_path / 'kv'}:8MiB"
    assert loop.stats()["tier_pages"] == {"disk": 0}
    loop.close()


def test_too_small_a_directory_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 1 KV pages of .*; give room for 16 or more"):
        tiny_loop(disk_cache=f"{tmp_path / 'kv'}:6KiB", executor="reference")
