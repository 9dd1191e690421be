"""Grammar libraries side by side: what they take and enforce of JSON Schema, and how long compiling and masks take.

    python benchmarks/grammar_libraries.py [MODEL] [--tools 500] [--rounds 3]

Trivium's own seam (llguidance) is measured, and xgrammar where it can be imported: `pip install --no-deps xgrammar
apache-tvm-ffi`, beside torch, which it imports. Schemas are those of the public test suite, which says of documents
whether they are valid, and the tools of a function-calling benchmark; both are fetched (`tests/support/schema_suites`).
Documents are compact, and xgrammar is told so. Each library is judged on what it compiles; masks are timed on documents
that both take, token by token. Prints a Markdown table; times are of one thread, cache off, the best of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.grammars import TOKENIZER, grammar, walk
from support.schema_suites import Group, groups, tool_schemas
from trivium.assembly.model import end_ids, load_tokenizer, open_model
from trivium.base.errors import InvalidParameterError
from trivium.config.options import EngineOptions, ModelOptions
from trivium.config.structured import StructuredOutputs
from trivium.grammar.library import Vocabulary
from trivium.tokens.tokenizer import Tokenizer


class Walker(Protocol):
    """One answer's place in its grammar."""

    def fill(self) -> None:
        """Compute the mask of the next token."""

    def take(self, token_id: int) -> bool:
        """Read a token; false where it is not allowed."""

    def may_end(self) -> bool:
        """Return whether what was read is a document."""


class Ours:
    """llguidance, through Trivium's seam."""

    name = "llguidance (Trivium)"

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int], vocab_size: int) -> None:
        self._vocabulary = Vocabulary(tokenizer, ends, vocab_size=vocab_size)

    def compile(self, schema: Any) -> Callable[[], Walker]:
        """Compile; an error means refusal."""
        compiled = self._vocabulary.compile(StructuredOutputs(json=schema))
        mask = np.empty(self._vocabulary.mask_words, np.uint32)
        return lambda: OurWalker(compiled.start(), mask)


class OurWalker:
    """A matcher of ours."""

    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask

    def fill(self) -> None:
        """See `Walker`."""
        self._matcher.fill(self._mask)

    def take(self, token_id: int) -> bool:
        """See `Walker`."""
        if not self._matcher.allows([token_id]):
            return False
        self._matcher.advance(token_id)
        return True

    def may_end(self) -> bool:
        """See `Walker`."""
        return bool(self._matcher.is_accepting)


class Theirs:
    """xgrammar."""

    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int], vocab_size: int) -> None:
        import xgrammar  # noqa: PLC0415  (optional)

        self._library = xgrammar
        spelled = [tokenizer.token_bytes(each) for each in range(tokenizer.vocab_size)]
        info = xgrammar.TokenizerInfo(spelled, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=list(ends))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, vocab_size)
        self._end = next(iter(ends))

    def compile(self, schema: Any) -> Callable[[], Walker]:
        """Compile; an error means refusal."""
        compiled = self._compiler.compile_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":"), strict_mode=False
        )
        return lambda: TheirWalker(self._library.GrammarMatcher(compiled), self._mask, self._end)


class TheirWalker:
    """A matcher of xgrammar's."""

    def __init__(self, matcher: Any, mask: Any, end: int) -> None:
        self._matcher = matcher
        self._mask = mask
        self._end = end

    def fill(self) -> None:
        """See `Walker`."""
        self._matcher.fill_next_token_bitmask(self._mask)

    def take(self, token_id: int) -> bool:
        """See `Walker`."""
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token_id))

    def may_end(self) -> bool:
        """See `Walker`."""
        return self._matcher.is_terminated() or bool(self._matcher.accept_token(self._end))


def judge(library: Any, suite: Sequence[Group], tokenizer: Tokenizer) -> tuple[Counter[str], list[float]]:
    """Try every document of every schema; returns counts and the seconds that compiling took."""
    counts: Counter[str] = Counter()
    times = []
    for group in suite:
        began_s = time.perf_counter()
        try:
            start = library.compile(group.schema)
        except Exception:  # whatever a library raises is its refusal
            counts["refused"] += 1
            continue
        times.append(time.perf_counter() - began_s)
        counts["compiled"] += 1
        for case in group.cases:
            with contextlib.suppress(UnicodeEncodeError):
                walker = start()
                tokens = tokenizer.encode(case.text, add_special_tokens=False)
                is_taken = all(map(walker.take, tokens)) and walker.may_end()
                counts[f"{'valid' if case.is_valid else 'invalid'} {'taken' if is_taken else 'kept out'}"] += 1
    return counts, times


def documents(schemas: Sequence[Any]) -> list[tuple[Any, str]]:
    """Draw a document for each schema that has one."""
    found = []
    for place, schema in enumerate(schemas):
        with contextlib.suppress(InvalidParameterError):
            matcher = grammar(json=schema).start()
            text = TOKENIZER.decode(walk(matcher, place, most=300))
            if matcher.is_accepting:
                found.append((schema, text))
    return found


def mask_times(start: Callable[[], Walker], tokens: Sequence[int], rounds: int) -> list[float] | None:
    """Return the seconds of each token's mask, the best of the rounds; `None` where the document is not taken."""
    best: list[float] = []
    for _ in range(rounds):
        walker, times = start(), []
        for token_id in tokens:
            began_s = time.perf_counter()
            walker.fill()
            times.append(time.perf_counter() - began_s)
            if not walker.take(token_id):
                return None
        best = list(map(min, best, times)) if best else times
    return best


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tools", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    options = EngineOptions(model=ModelOptions(model=given.model))
    model = open_model(options)
    tokenizer = load_tokenizer(options, model)
    ends = end_ids(model.checkpoint, model.config, tokenizer)
    libraries: list[Any] = [Ours(tokenizer, ends, model.config.vocab_size)]
    try:
        libraries.append(Theirs(tokenizer, ends, model.config.vocab_size))
    except ImportError as error:
        sys.stderr.write(f"xgrammar is not measured: {error}\n")
    suite = [group for group in groups() if group.draft in {"draft7", "draft2020-12"}]
    drawn = documents(tool_schemas()[: given.tools])
    ids = [tokenizer.encode(text, add_special_tokens=False) for _, text in drawn]
    rows: list[list[str]] = []
    walks: list[list[list[float] | None]] = []
    for library in libraries:
        counts, suite_s = judge(library, suite, tokenizer)
        tools_s, own = [], []
        for (schema, _), tokens in zip(drawn, ids, strict=True):
            began_s = time.perf_counter()
            start = library.compile(schema)
            tools_s.append(time.perf_counter() - began_s)
            own.append(mask_times(start, tokens, given.rounds))
        walks.append(own)
        kinds = ("compiled", "refused", "valid taken", "valid kept out", "invalid kept out", "invalid taken")
        rows.append([library.name, *(str(counts[kind]) for kind in kinds), _spread(suite_s), _spread(tools_s)])
    both = [all(own[place] for own in walks) for place in range(len(drawn))]
    for row, own in zip(rows, walks, strict=True):
        row.append(_spread([each for place, times in enumerate(own) if both[place] for each in times or ()]))
    print(f"{len(suite)} schemas of the suite, {len(drawn)} tools, of which both take {sum(both)} documents\n")
    print("| | compiled | refused | valid taken | valid kept out | invalid kept out | **invalid taken** "
          "| compile, suite: p50 / p99 us | compile, tools: p50 / p99 us | mask: p50 / p99 us |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0


def _spread(seconds: Sequence[float]) -> str:
    return " / ".join(f"{each * 1e6:.0f}" for each in np.percentile(seconds, (50, 99))) if seconds else "-"


if __name__ == "__main__":
    sys.exit(main())
