"""Adapters over HTTP: vLLM's shapes, names, and paths that lead nowhere but below the roots."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.server_site import MakeSite, Site
from support.tiny_adapters import write_adapter
from support.tiny_checkpoints import hub_config
from trivium.base.errors import AdapterError, CapacityError

CONFIG = hub_config("LlamaForCausalLM")
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters"
    for name in ("sql", "poet"):
        write_adapter(folder / name, CONFIG)
    return folder


@pytest.fixture
def site(make_site: MakeSite, root: Path) -> Site:
    return make_site(lora_root=(root,))


async def post(site: Site, path: str, **fields: object) -> tuple[int, str]:
    response = await site.client.post(path, json=fields)
    is_text = response.headers["content-type"].startswith("text/plain")
    return response.status_code, response.text if is_text else response.json()["error"]["message"]


async def names(site: Site) -> list[str]:
    return [card["id"] for card in (await site.client.get("/v1/models")).json()["data"]]


async def test_an_adapter_is_loaded_listed_used_and_unloaded(site: Site, root: Path) -> None:
    assert await post(site, LOAD, lora_name="sql", lora_path=str(root / "sql")) == (
        200,
        "Success: LoRA adapter 'sql' added successfully.",
    )
    assert await names(site) == ["tiny", "tiny-alias", "sql"]
    card = (await site.client.get("/v1/models/sql")).json()
    assert (card["root"], card["parent"]) == (str(root / "sql"), "tiny")
    assert (card["details"]["rank"], card["details"]["generation"]) == (8, 1)
    answer = (await site.complete(model="sql", max_tokens=2)).json()
    assert answer["model"] == "sql"
    assert (await site.chat(model="sql", max_tokens=2)).json()["model"] == "sql"
    await site.complete(max_tokens=2)
    assert [submitted.adapter for submitted in site.engine.submitted] == ["sql", "sql", None]
    assert (await site.post("/tokenize", model="sql", prompt="hi")).status_code == 200
    assert await post(site, UNLOAD, lora_name="sql") == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert await names(site) == ["tiny", "tiny-alias"]
    gone = await site.complete(model="sql")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    status, message = await post(site, UNLOAD, lora_name="sql")
    assert (status, message) == (404, "The lora adapter 'sql' cannot be found")


async def test_a_path_may_be_relative_to_a_root(site: Site, root: Path) -> None:
    assert (await post(site, LOAD, lora_name="a", lora_path="poet"))[0] == 200
    assert site.engine.asked[-1][1]["path"] == str(root / "poet")


async def test_a_name_is_loaded_anew_only_in_place_and_with_another_generation(site: Site) -> None:
    await post(site, LOAD, lora_name="a", lora_path="poet")
    status, message = await post(site, LOAD, lora_name="a", lora_path="sql")
    assert status == 400
    assert message.startswith("The lora adapter 'a' has already been loaded. If you want to load the adapter in place")
    assert (await post(site, LOAD, lora_name="a", lora_path="sql", load_inplace=True))[0] == 200
    assert [(name, what["generation"]) for name, what in site.engine.asked] == [
        ("load_adapter", 1),
        ("load_adapter", 2),
        ("unload_adapter", 1),
    ]


@pytest.mark.parametrize("name", ["tiny", "alias", "", "../x", "a/../b", "/abs", "a\0b", "a b", "a,b", "x" * 201])
async def test_a_name_that_is_none_or_means_the_base_is_refused(make_site: MakeSite, root: Path, name: str) -> None:
    site = make_site(lora_root=(root,), served={"aliases": ("alias",)})
    assert (await post(site, LOAD, lora_name=name, lora_path="sql"))[0] == 400
    assert await names(site) == ["tiny", "alias"]
    assert site.engine.asked == []


async def test_paths_lead_nowhere_but_below_the_roots(site: Site, root: Path, tmp_path: Path) -> None:
    outside = write_adapter(tmp_path / "outside", CONFIG)
    (root / "link").symlink_to(outside)
    (root / "half").mkdir()
    (root / "half" / "adapter_config.json").symlink_to(outside / "adapter_config.json")
    (root / "loop").symlink_to(root / "loop")
    for path in ("../outside", str(outside), "/etc", "sql/../../outside", "link", "half", "a\0b", "loop"):
        status, message = await post(site, LOAD, lora_name="a", lora_path=path)
        assert status == 400, path
        assert "lora_path" in message
    for path in ("nothing", "sql/adapter_config.json", str(root / "nothing")):
        status, message = await post(site, LOAD, lora_name="a", lora_path=path)
        assert (status, message) == (404, f"No adapter found for '{path}'")
    assert site.engine.asked == []
    (root / "inner").symlink_to(root / "sql")
    assert (await post(site, LOAD, lora_name="a", lora_path="inner"))[0] == 200


async def test_without_roots_both_routes_are_off(make_site: MakeSite, root: Path) -> None:
    site = make_site()
    for path in (LOAD, UNLOAD):
        status, message = await post(site, path, lora_name="a", lora_path=str(root / "sql"))
        assert (status, message) == (
            403,
            "adapters are not loaded while serving; start the server with --lora-root DIR",
        )


async def test_what_the_engine_refuses_is_told_and_the_name_stays_free(site: Site) -> None:
    for error, status in ((AdapterError("adapter 'a': rank 99", param="lora_path"), 400),
                          (CapacityError("no memory", retry_after_s=60.0), 503)):  # fmt: skip
        site.engine.adapter_refusal = error
        assert await post(site, LOAD, lora_name="a", lora_path="sql") == (status, str(error))
    site.engine.adapter_refusal = None
    assert await names(site) == ["tiny", "tiny-alias"]
    assert (await post(site, LOAD, lora_name="a", lora_path="sql"))[0] == 200


async def test_two_loads_of_a_name_at_once_are_one(site: Site) -> None:
    first, second = await asyncio.gather(
        post(site, LOAD, lora_name="a", lora_path="sql"), post(site, LOAD, lora_name="a", lora_path="poet")
    )
    assert sorted([first[0], second[0]]) == [200, 400]
    removed = await asyncio.gather(*(post(site, UNLOAD, lora_name="a") for _ in range(2)))
    assert sorted(status for status, _ in removed) == [200, 404]


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"lora_path": "sql"}, "lora_name is missing"), ({"lora_name": "a"}, "lora_path is missing"),
     ({"lora_name": 7, "lora_path": "sql"}, "lora_name is 7"),
     ({"lora_name": "a", "lora_path": "sql", "load_inplace": "yes"}, "load_inplace"),
     ({"lora_name": "a", "lora_path": "sql", "other": 1}, "other")],
)  # fmt: skip
async def test_fields_are_checked(site: Site, fields: dict[str, object], message: str) -> None:
    status, told = await post(site, LOAD, **fields)
    assert status == 400
    assert message in told


async def test_an_admin_key_is_wanted_where_there_is_one(make_site: MakeSite, root: Path) -> None:
    site = make_site(lora_root=(root,), api_key=("user=user-key-1",), admin_key=("boss=boss-key-1",))
    asked = {"lora_name": "a", "lora_path": "sql"}
    statuses = []
    for key in (None, "user-key-1", "boss-key-1"):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        statuses.append((await site.client.post(LOAD, json=asked, headers=headers)).status_code)
    assert statuses == [401, 401, 200]
    open_site = make_site(lora_root=(root,), api_key=("user=user-key-1",))
    headers = {"authorization": "Bearer user-key-1"}
    assert (await open_site.client.post(LOAD, json=asked)).status_code == 401
    assert (await open_site.client.post(LOAD, json=asked, headers=headers)).status_code == 200


async def test_a_prompt_is_pinned_for_the_adapter_that_it_names(make_site: MakeSite, root: Path) -> None:
    site = make_site(lora_root=(root,), admin_key=("boss=boss-key-1",))
    headers = {"authorization": "Bearer boss-key-1"}
    await site.client.post(LOAD, json={"lora_name": "a", "lora_path": "sql"}, headers=headers)
    site.engine.replies = [{"tokens": 16}]
    pinned = await site.client.post("/v1/cache/pin", json={"model": "a", "prompt": "x" * 20}, headers=headers)
    assert pinned.status_code == 200, pinned.text
    assert site.engine.submitted[-1].adapter == "a"
    asked = site.engine.asked[-1][1]
    assert (asked["adapter"], asked["adapter_generation"]) == ("a", 1)
