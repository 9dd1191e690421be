"""Cases G01 and G04: a broken checkpoint ends the program with one line, quickly and in little memory.

Each case runs in a process of its own, so that a signal, a hang or a giant allocation shows.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.tiny_checkpoints import hub_config, hub_weights, write_gguf, write_hub

CONFIG = hub_config("LlamaForCausalLM")
LOAD = """
import json, resource, sys
from pathlib import Path
from trivium.base.errors import TriviumError
from trivium.models import build_graph, parse_config
from trivium.weights.bind import bind_parameters
from trivium.weights.checkpoint import open_checkpoint

def load(path):
    with open_checkpoint(path) as checkpoint:
        config = parse_config(checkpoint.hf_config)
        for parameter in bind_parameters(checkpoint, build_graph(config).param_shapes(), config).values():
            parameter.float32()

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load(Path(sys.argv[1]))
    status = 0
except TriviumError as error:
    print(error, file=sys.stderr)
    status = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
sys.exit(status)
"""


@dataclass(frozen=True)
class Outcome:
    status: int
    message: str
    grown_bytes: int
    seconds: float


def load(path: Path) -> Outcome:
    started = time.monotonic()
    done = subprocess.run(  # noqa: S603  our own program text
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    grown = int(done.stdout or 0) * 1024
    return Outcome(done.returncode, done.stderr.strip(), grown, time.monotonic() - started)


def assert_refused(path: Path, *words: str) -> None:
    outcome = load(path)
    assert outcome.status == 1, outcome
    assert "\n" not in outcome.message
    for word in words:
        assert word in outcome.message
    size = path.stat().st_size if path.is_file() else 0
    assert outcome.grown_bytes < 2 * size + (64 << 20)
    assert outcome.seconds < 10


def replace_once(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) == 1
    return content.replace(old, new)


def after(content: bytes, name: str, distance: int, old: bytes, new: bytes) -> bytes:
    """Replace `old`, which stands `distance` bytes behind a name, by `new` of equal length."""
    marked = struct.pack("<Q", len(name)) + name.encode()
    start = content.index(marked) + len(marked) + distance
    assert content[start : start + len(old)] == old
    assert len(old) == len(new)
    return content[:start] + new + content[start + len(new) :]


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


QUERY = "blk.0.attn_q.weight"
# a description is: name | n_dims u32 | dimensions u64 each | format u32 | offset u64; a pair: key | type u32 | value
MALFORMED: dict[str, tuple[Callable[[bytes], bytes], tuple[str, ...]]] = {
    "dimension 0": (lambda good: after(good, QUERY, 4, u64(32), u64(0)), (QUERY, "dimension 0")),
    "product of dimensions over 2^64": (
        lambda good: after(good, QUERY, 4, u64(32) * 2, u64(1 << 33) * 2),
        (QUERY, "dimensions", "product"),
    ),
    "n_dims 1000000": (lambda good: after(good, QUERY, 0, u32(2), u32(1_000_000)), (QUERY, "n_dims 1000000")),
    "n_tensors 2^60": (lambda good: good[:8] + u64(1 << 60) + good[16:], ("tensor count is 1152921504606846976",)),
    "zero-length key": (lambda good: good[:24] + u64(0) + good[32:], ("key 0 has length 0",)),
    "string length 2^62": (
        lambda good: after(good, "general.architecture", 4, u64(5), u64(1 << 62)),
        ("general.architecture", "takes 4611686018427387904 bytes"),
    ),
    "token_type array declared as bytes": (
        lambda good: after(good, "tokenizer.ggml.token_type", 4, u32(5), u32(0)),
        ("tokenizer.ggml.token_type", "array of uint8"),
    ),
    "block_count 100000": (
        lambda good: after(good, "llama.block_count", 4, u32(2), u32(100_000)),
        ("llama.block_count is 100000",),
    ),
    "alignment 0": (
        lambda good: replace_once(
            good, struct.pack("<Q", 17) + b"llama.block_count" + u32(4) + u32(2),
            struct.pack("<Q", 17) + b"general.alignment" + u32(4) + u32(0),
        ),
        ("general.alignment is 0",),
    ),
    "unknown architecture": (
        lambda good: after(good, "general.architecture", 12, b"llama", b"lhama"),
        ("general.architecture is 'lhama'", "known are llama"),
    ),
    "bad magic": (lambda good: b"GGML" + good[4:], ("magic is b'GGML'",)),
    "cut in half": (lambda good: good[: len(good) // 2], ("expected", "truncated")),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "good.gguf", CONFIG, hub_weights(CONFIG))
    outcome = load(path)
    assert (outcome.status, outcome.message) == (0, "")
    return path.read_bytes()


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_gguf_file_ends_with_one_line_that_names_the_field(tmp_path: Path, good: bytes, fault: str) -> None:
    change, words = MALFORMED[fault]
    (tmp_path / "bad.gguf").write_bytes(change(good))
    assert_refused(tmp_path / "bad.gguf", str(tmp_path / "bad.gguf"), *words)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_hub(tmp_path, CONFIG, hub_weights(CONFIG), num_shards=3)
    return tmp_path


def test_a_cut_shard_is_named_with_expected_and_real_size(sharded: Path) -> None:
    shard = sharded / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1000])
    assert_refused(sharded, str(shard), f"expected {len(content)} bytes", f"has {len(content) - 1000}")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00003-of-00003.safetensors").unlink()
    assert_refused(sharded, "missing", "model-00003-of-00003.safetensors")


def test_a_header_longer_than_its_file_is_named_with_both_sizes(sharded: Path) -> None:
    shard = sharded / "model-00001-of-00003.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(u64(1 << 40) + content[8:])
    assert_refused(sharded, str(shard), f"header length {1 << 40} bytes", f"has {len(content)} bytes")


def test_a_whole_sharded_checkpoint_loads(sharded: Path) -> None:
    assert load(sharded).status == 0


def test_a_checkpoint_of_another_width_is_refused_with_both_shapes(sharded: Path) -> None:
    (sharded / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": 65}))
    assert_refused(sharded, "mlp.gate_proj.weight has shape [64, 32], expected [65, 32]")
