"""Names: directory, file, catalog, hub, in this order; anything else is an error that lists what there is."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.tiny_wheels import packaged_model
from trivium.base.errors import ConfigError, ModelError
from trivium.config.options import ModelOptions
from trivium.weights import hub, resolve
from trivium.weights.resolve import ResolvedModel, resolve_model


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty directory, without variables that change what a name means."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "TRIVIUM_WHEEL_DIR", "TRIVIUM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def refusal(model: str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(ModelOptions(model=model, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_in_hub_layout_comes_first(tmp_path: Path) -> None:
    for name in ("my-model", "smollm2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        assert resolve_model(ModelOptions(model=name)) == ResolvedModel(name=name, path=Path(name), licence=None)


def test_a_gguf_file_is_named_after_itself(tmp_path: Path) -> None:
    (tmp_path / "tiny.Q4_0.gguf").write_bytes(b"GGUF")
    resolved = resolve_model(ModelOptions(model=str(tmp_path / "tiny.Q4_0.gguf")))
    assert resolved == ResolvedModel(name="tiny.Q4_0", path=tmp_path / "tiny.Q4_0.gguf", licence=None)


def test_a_catalog_name_is_fetched_with_its_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packaged_model(tmp_path / "wheels", b"weights" * 100)
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(tmp_path / "wheels"))
    monkeypatch.setattr(resolve, "CATALOG", {"tiny": model})
    resolved = resolve_model(ModelOptions(model="tiny", cache_dir=tmp_path / "cache"))
    assert (resolved.name, resolved.licence) == ("tiny", "Do What You Like")
    assert resolved.path.read_bytes() == b"weights" * 100


def test_a_directory_of_a_catalog_name_that_holds_no_model_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged_model(tmp_path / "wheels", b"weights")
    monkeypatch.setenv("TRIVIUM_WHEEL_DIR", str(tmp_path / "wheels"))
    monkeypatch.setattr(resolve, "CATALOG", {"tiny": model})
    (tmp_path / "tiny").mkdir()
    assert resolve_model(ModelOptions(model="tiny", cache_dir=tmp_path / "cache")).path.name == "tiny.gguf"


def test_a_name_that_means_nothing_lists_the_catalog_and_what_is_close() -> None:
    message = refusal("SmolLM2-135M")
    assert "no model 'SmolLM2-135M'" in message
    assert "smollm2, gemma3-270m" in message
    assert "did you mean 'smollm2'?" in message
    assert "did you mean" not in refusal("xyzzy")


def test_a_revision_of_what_is_not_on_the_hub_is_refused(tmp_path: Path) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    (tmp_path / "org" / "model" / "config.json").write_text("{}")
    for name in ("smollm2", "org/model", "x.gguf"):
        assert f"revision 'v1' was given, but '{name}' is not a model of the hub" in refusal(name, revision="v1")


def test_what_is_there_but_no_model_says_why(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a.gguf").touch()
    for name in ("x.bin", "x.safetensors", "x.txt"):
        (tmp_path / name).touch()
    assert "directory without config.json, so not in Hugging Face layout; name one of its files: a.gguf" in refusal(
        "dir"
    )
    assert "x.bin: pickled weights can run code" in refusal("x.bin")
    assert "x.safetensors: name the directory that holds it" in refusal("x.safetensors")
    assert "x.txt: not a directory in Hugging Face layout and not a .gguf file" in refusal("x.txt")
    assert "gone.gguf: no such file" in refusal("gone.gguf")


# --- the hub ----------------------------------------------------------------------------------------------------


class FakeHub:
    """Stands for huggingface_hub: what it holds, what it has cached, whether it answers."""

    def __init__(self, directory: Path, *, files: list[str] | None = None, error: Exception | None = None) -> None:
        self.directory = directory
        self.files = ["config.json", "model.safetensors"] if files is None else files
        self.error = error
        self.is_cached = False
        self.downloads: list[dict[str, Any]] = []

    def HfApi(self, *, token: str | None) -> FakeHub:  # noqa: N802  the library's name
        self.token = token
        return self

    def model_info(self, name: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
        assert timeout <= 10
        if self.error is not None:
            raise self.error
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in self.files])

    def snapshot_download(self, name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            if not self.is_cached:
                raise FileNotFoundError(name)
            return str(self.directory)
        self.downloads.append({"name": name, **options})
        return str(self.directory)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeHub) -> FakeHub:
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_a_hub_model_is_downloaded_without_pickled_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeHub(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "secret")
    resolved = resolve_model(ModelOptions(model="org/Model-1B", revision="v2"))
    assert resolved == ResolvedModel(name="Model-1B", path=tmp_path, licence=None)
    (download,) = fake.downloads
    assert (download["name"], download["revision"], download["token"]) == ("org/Model-1B", "v2", "secret")
    assert not any("bin" in pattern or "pt" in pattern for pattern in download["allow_patterns"])


def test_without_the_extra_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert r"pip install 'trivium[hf]'" in refusal("org/model")


def test_an_unreachable_hub_is_an_error_or_the_cached_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeHub(tmp_path, error=ConnectionError("no route\nto host")))
    assert "the hub cannot be reached (no route to host), and it is not in the hub's cache" in refusal("org/model")
    fake.is_cached = True
    assert resolve_model(ModelOptions(model="org/model")).path == tmp_path


def test_a_hub_that_never_answers_costs_the_deadline_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading  # noqa: PLC0415

    forever = threading.Event()

    class Silent(FakeHub):
        def model_info(self, name: str, *, revision: str | None, timeout: float) -> SimpleNamespace:
            forever.wait()
            raise ConnectionError

    install(monkeypatch, Silent(tmp_path))
    monkeypatch.setattr(hub, "DEADLINE_S", 0.05)
    started = time.monotonic()
    message = refusal("org/model")
    forever.set()
    assert "the hub did not answer within 0.05 s" in message
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("how", ["option", "variable"])
def test_offline_asks_nothing_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    fake = install(monkeypatch, FakeHub(tmp_path, error=AssertionError("the hub was asked")))
    if how == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "downloads are off (offline), and it is not in the hub's cache" in refusal("org/m", offline=how == "option")
    fake.is_cached = True
    assert resolve_model(ModelOptions(model="org/m", offline=how == "option")).path == tmp_path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GatedRepoError", "access is restricted; accept its terms there and set HF_TOKEN"),
        ("RepositoryNotFoundError", "no such model"),
        ("RevisionNotFoundError", "no such revision"),
    ],
)
def test_what_the_hub_refuses_is_said_and_no_cached_copy_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    fake = install(monkeypatch, FakeHub(tmp_path, error=type(kind, (Exception,), {})("x")))
    fake.is_cached = True
    assert message in refusal("org/model")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["config.json", "pytorch_model.bin"], "pickled weights only, which can run code"),
        (["a.gguf", "b.gguf", "README.md"], "holds GGUF files only; download one and name it: a.gguf, b.gguf"),
        (["config.json", "original/model.safetensors"], "no config.json with safetensors weights"),
        ([], "no config.json with safetensors weights"),
    ],
)
def test_a_hub_model_without_usable_weights_says_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], message: str
) -> None:
    fake = install(monkeypatch, FakeHub(tmp_path, files=files))
    assert message in refusal("org/model")
    assert fake.downloads == []


def test_a_failing_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FakeHub):
        def snapshot_download(self, name: str, **options: Any) -> str:
            raise OSError("disk\nfull")

    install(monkeypatch, Failing(tmp_path))
    assert "'org/model' cannot be downloaded from the Hugging Face hub: disk full" in refusal("org/model")


def test_a_bad_variable_is_a_configuration_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeHub(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "perhaps")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is 'perhaps'"):
        resolve_model(ModelOptions(model="org/model"))
