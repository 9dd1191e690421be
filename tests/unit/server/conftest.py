"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.fake_engine import FakeEngine
from support.server_site import MakeSite, Site, open_site


@pytest.fixture
async def make_site() -> AsyncIterator[MakeSite]:
    sites: list[Site] = []

    def make(engine: FakeEngine | None = None, **options: Any) -> Site:
        sites.append(open_site(engine, **options))
        return sites[-1]

    yield make
    for site in sites:
        await site.client.aclose()


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site()
