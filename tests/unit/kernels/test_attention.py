"""Native attention against the reference's: rope, storing, attending, for every way of storing keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import native_attention as attention
from support.native_attention import PAGE_LEN, HeadNorms, KVDType, KVPages, Paging
from trivium.base.errors import InternalError
from trivium.config.model import RopeConfig
from trivium.ir import meaning
from trivium.ir.attention import KVRead, Sight, attend
from trivium.ir.rope import rope_angles, rope_frequencies
from trivium.kernels import gemm, native
from trivium.runtime.arrays import NumpyLibrary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float32Array = NDArray[np.float32]

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs the native kernels")

LIBRARY = NumpyLibrary(gemm)
RUN = meaning.Pass(LIBRARY, cast("Any", None))
EPS = 2.0**-24
ROUNDING = {"f32": 0.0, "bf16": 2.0**-8, "i8": 2.0**-8}
"""Of queries and shares, relative."""
ROPE = RopeConfig(rotary_dim=8, original_max_positions=4096)


def _levels() -> list[str]:
    module = native.load()
    return [] if module is None else [level for level, _ in module.attention_kernels() if level in _running(module)]


def _running(module: Any) -> list[str]:
    levels = ["scalar", "avx2", "avx512", "avx512vnni", "amx"]
    detected = module.detected_isa()
    return levels[: levels.index(detected) + 1] if detected in levels else levels[:2]


@dataclass(frozen=True)
class Scene:
    """One request of one layer, all of its tokens known."""

    dtype: KVDType
    num_heads: int
    num_kv_heads: int
    width: int
    length: int
    window: int | None
    softcap: float | None
    norm: str
    seed: int

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.width)

    @property
    def factor(self) -> float:
        return attention.query_factor(self.scale, self.softcap)

    def draw(self, *shape: int, salt: int = 0) -> Float32Array:
        return np.random.default_rng((self.seed, salt)).standard_normal(shape, np.float32)

    @property
    def qkv(self) -> Float32Array:
        return self.draw(self.length, (self.num_heads + 2 * self.num_kv_heads) * self.width)

    @property
    def norms(self) -> HeadNorms | None:
        if self.norm == "none":
            return None
        q, k = (self.num_heads, self.num_kv_heads) if self.norm == "full" else (1, 1)
        return HeadNorms(
            q_weight=self.draw(q * self.width, salt=1), k_weight=self.draw(k * self.width, salt=2), eps=1e-6
        )

    def page_table(self) -> NDArray[np.int32]:
        num_pages = -(-self.length // PAGE_LEN)
        return np.random.default_rng(self.seed).permutation(num_pages).astype(np.int32)[None]

    def new_pages(self) -> KVPages:
        num_pages = -(-self.length // PAGE_LEN)
        return KVPages(
            self.dtype, num_layers=2, num_pages=num_pages, num_kv_heads=self.num_kv_heads, head_width=self.width
        )

    def paging(self, start: int, end: int) -> Paging:
        """Tokens start to end, as one chunk."""
        return Paging(
            starts=np.array([0, end - start], np.int32),
            positions=np.arange(start, end, dtype=np.int32),
            kv_lens=np.array([end], np.int32),
            page_table=self.page_table(),
        )


def run_chunk(scene: Scene, pages: KVPages, start: int, end: int, isa: str | None = None) -> tuple[Any, Any]:
    """Return queries [T, H, D] as floats, and rows [T, H, D], of one chunk of layer 1."""
    paging = scene.paging(start, end)
    frequencies, _ = rope_frequencies(ROPE, 0)
    table = attention.rope_table(paging, frequencies[None], np.zeros(1, np.int32), factor=1.0)
    queries = attention.rope_and_store(
        paging, pages, 1, scene.qkv[start:end], factor=scene.factor, table=table, norms=scene.norms, isa=isa
    )
    rows = attention.attend(
        paging, pages, 1, queries, num_heads=scene.num_heads, window=scene.window, softcap=scene.softcap, isa=isa
    )
    if scene.dtype == "f32":
        floats = queries.view(np.float32)
    else:
        floats = (queries.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    shape = (end - start, scene.num_heads, scene.width)
    return floats.reshape(shape), rows.reshape(shape)


def stored(scene: Scene, pages: KVPages) -> tuple[Float32Array, Float32Array]:
    """Return keys and values [G, T, D] as stored."""
    keys = np.empty((scene.num_kv_heads, scene.length, scene.width), np.float32)
    values = np.empty_like(keys)
    table = scene.page_table()[0]
    for head in range(scene.num_kv_heads):
        for position in range(scene.length):
            place = (1, int(table[position // PAGE_LEN]), head, position % PAGE_LEN)
            keys[head, position], values[head, position] = pages.read_token(*place)
    return keys, values


def expected_qk(scene: Scene) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Return queries [T, H, D], keys and values [T, G, D] by the ops' meanings."""
    ends = np.cumsum([scene.num_heads * scene.width, scene.num_kv_heads * scene.width])
    q, k, v = (np.ascontiguousarray(part) for part in np.split(scene.qkv, ends, axis=1))
    norms = scene.norms
    if norms is not None and scene.norm == "full":
        q = meaning.rms_norm(RUN, q, norms.q_weight, eps=norms.eps)
        k = meaning.rms_norm(RUN, k, norms.k_weight, eps=norms.eps)
    q, k, v = (part.reshape(scene.length, -1, scene.width) for part in (q, k, v))
    if norms is not None and scene.norm == "head":
        q = meaning.rms_norm(RUN, q, norms.q_weight, eps=norms.eps)
        k = meaning.rms_norm(RUN, k, norms.k_weight, eps=norms.eps)
    table = rope_angles(ROPE, np.arange(scene.length), np.full(scene.length, scene.length))
    return meaning.rope(RUN, q, table), meaning.rope(RUN, k, table), v


scenes = st.builds(
    lambda groups, shared, **rest: Scene(num_heads=groups * shared, num_kv_heads=groups, **rest),
    groups=st.integers(1, 3),
    shared=st.sampled_from([1, 3, 7, 8]),
    dtype=st.sampled_from(attention.KVDType.__args__),
    width=st.sampled_from([8, 16, 18, 64, 80, 96]),
    length=st.integers(1, 150),
    window=st.none() | st.integers(1, 100),
    softcap=st.sampled_from([None, 5.0]),
    norm=st.sampled_from(["none", "head", "full"]),
    seed=st.integers(0, 1 << 20),
)


@settings(max_examples=60, deadline=None)
@given(scene=scenes, isa=st.sampled_from(_levels() or ["scalar"]))
def test_queries_keys_and_values_are_those_of_the_meanings(scene: Scene, isa: str) -> None:
    pages = scene.new_pages()
    queries, _ = run_chunk(scene, pages, 0, scene.length, isa)
    q, k, v = expected_qk(scene)
    keys, values = stored(scene, pages)
    # float32 before rounding: a norm's sum, two products and a sum of each rotation.
    noise = (scene.width + 16) * EPS
    half_unit = {"f32": 0.0, "bf16": 2.0**-8, "i8": 0.5 / 127}[scene.dtype]
    for got, wanted in ((keys, k), (values, v)):
        top = np.abs(wanted).max(axis=-1, keepdims=True).transpose(1, 0, 2)
        of_rounding = half_unit * (top if scene.dtype == "i8" else np.abs(wanted.transpose(1, 0, 2)))
        assert np.all(np.abs(got - wanted.transpose(1, 0, 2)) <= 1.01 * of_rounding + 4 * noise * top)
    wanted = q * np.float32(scene.factor)
    top = np.abs(wanted).max(axis=-1, keepdims=True)
    of_rounding = (0.0 if scene.dtype == "f32" else 2.0**-8) * np.abs(wanted)
    assert np.all(np.abs(queries - wanted) <= 1.01 * of_rounding + 4 * noise * top)


@settings(max_examples=60, deadline=None)
@given(scene=scenes, isa=st.sampled_from(_levels() or ["scalar"]))
def test_rows_are_those_of_the_reference_on_what_is_stored(scene: Scene, isa: str) -> None:
    pages = scene.new_pages()
    queries, rows = run_chunk(scene, pages, 0, scene.length, isa)
    keys, values = stored(scene, pages)
    positions = np.arange(scene.length, dtype=np.int32)[None]
    read = KVRead(slice(None), Sight(positions, np.zeros(1, np.int32), scene.window), keys[:, None], values[:, None])
    # In queries the factor stands for the scale: exp2 instead of exp, and the argument of tanh.
    q = queries * np.float32(scene.scale / scene.factor)
    wanted = attend(LIBRARY, q, read, softcap=scene.softcap)
    size = np.abs(q).max() * np.abs(keys).max() * scene.width
    of_float = 8 * EPS * (scene.width * size + scene.length + 8 * (scene.softcap or 0.0) + 64)
    bound = np.abs(values).max() * (ROUNDING[scene.dtype] + of_float)
    assert np.abs(rows - wanted).max() <= bound


@settings(max_examples=40, deadline=None)
@given(scene=scenes, chunk=st.integers(1, 70))
def test_chunks_give_the_bits_of_the_whole(scene: Scene, chunk: int) -> None:
    _, whole = run_chunk(scene, scene.new_pages(), 0, scene.length)
    pages = scene.new_pages()
    for start in range(0, scene.length, chunk):
        end = min(start + chunk, scene.length)
        _, rows = run_chunk(scene, pages, start, end)
        assert rows.tobytes() == whole[start:end].tobytes()


def test_table_is_the_reference_table() -> None:
    rope = RopeConfig(rotary_dim=64, original_max_positions=4096)
    positions = np.concatenate([np.arange(100), np.arange(1 << 17, (1 << 17) + 100)]).astype(np.int32)
    frequencies, _ = rope_frequencies(rope, 0)
    paging = Paging(
        starts=np.array([0, 100, 200], np.int32),
        positions=positions,
        kv_lens=np.array([100, (1 << 17) + 100], np.int32),
        page_table=np.zeros((2, (1 << 13) + 7), np.int32),
    )
    table = attention.rope_table(paging, frequencies[None], np.zeros(2, np.int32), factor=1.5)
    wanted = rope_angles(rope, positions, positions) * np.float32(1.5)
    # Two libraries' double cosines, each within an ulp, rounded to float32: equal but for rare ties.
    assert np.abs(table - wanted).max() <= 2 * EPS
    assert np.mean(table != wanted) <= 1e-4


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
def test_pages_move_whole(dtype: KVDType) -> None:
    pages = KVPages(dtype, num_layers=3, num_pages=4, num_kv_heads=2, head_width=16)
    rng = np.random.default_rng(0)
    for layer in range(3):
        for head in range(2):
            for slot in range(PAGE_LEN):
                pages.write_token(layer, 1, head, slot, *rng.standard_normal((2, 16), np.float32))
    pages.import_page(3, pages.export_page(1))
    pages.copy_pages([(3, 0), (0, 2)])
    assert pages.export_page(2) == pages.export_page(1)
    for got, wanted in zip(pages.read_token(2, 2, 1, 9), pages.read_token(2, 1, 1, 9), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_what_does_not_fit_is_refused() -> None:
    scene = Scene("bf16", 4, 2, 16, 20, None, None, "none", 0)
    pages = scene.new_pages()
    with pytest.raises(InternalError, match="even"):
        KVPages("bf16", num_layers=1, num_pages=1, num_kv_heads=1, head_width=15)
    with pytest.raises(InternalError, match="not bf16, f32 or i8"):
        KVPages("f16", num_layers=1, num_pages=1, num_kv_heads=1, head_width=16)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="page 2 of a store of 2"):
        pages.export_page(2)
    with pytest.raises(InternalError, match="page -1 of a store of 2"):
        pages.copy_pages([(0, -1)])
    with pytest.raises(InternalError, match="bytes"):
        pages.import_page(0, b"short")
    with pytest.raises(InternalError, match="not finite"):
        pages.import_page(0, b"\xff" * pages.page_bytes)
    with pytest.raises(InternalError, match="layer 2 of a store of 2"):
        attention.attend(scene.paging(0, 4), pages, 2, np.zeros(4 * 4 * 16 * 2, np.uint8), num_heads=4)
    with pytest.raises(InternalError, match="queries has"):
        attention.attend(scene.paging(0, 4), pages, 0, np.zeros(7, np.uint8), num_heads=4)
    with pytest.raises(InternalError, match="window of 0"):
        attention.attend(scene.paging(0, 4), pages, 0, np.zeros(512, np.uint8), num_heads=4, window=0)


def test_pages_that_a_row_sees_must_be_held() -> None:
    scene = Scene("bf16", 1, 1, 16, 100, None, None, "none", 0)
    pages = scene.new_pages()
    paging = scene.paging(90, 100)
    paging.page_table[0, 1] = -1
    queries = np.zeros(10 * 16 * 2, np.uint8)
    with pytest.raises(InternalError, match="page 1 of request 0 is -1"):
        attention.attend(paging, pages, 0, queries, num_heads=1)
    attention.attend(paging, pages, 0, queries, num_heads=1, window=50)
