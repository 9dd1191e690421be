"""Write what transformers says of a real model under tests/golden/real: greedy tokens, and log likelihood of a text.

Run with torch and transformers at the versions of the `oracle` extra, on a GGUF file, which transformers dequantizes
to float32:

    python tools/make_real_goldens.py smollm2 path/to/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
PROMPTS = ("The capital of France is", "Once upon a time, in a village by the sea,")
NUM_GREEDY = 64
TEXT = "declaration"
PART_LEN = 256
MOST_TEXT_TOKENS = 1600
ROWS_AT_ONCE = 128


def greedy_tokens(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Return the most likely continuation, and the least distance of the two largest logits on the way."""
    cache, tokens, drawn, margin = None, prompt, [], float("inf")
    for _ in range(NUM_GREEDY):
        found = model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True, logits_to_keep=1)
        cache = found.cache
        best, second = found.logits[0, -1].topk(2).values.tolist()
        margin = min(margin, best - second)
        tokens = [int(found.logits[0, -1].argmax())]
        drawn += tokens
    return drawn, margin


def token_losses(model: Any, tokens: list[int]) -> torch.Tensor:
    """[tokens - 1] minus log probability of each token but the first."""
    hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    targets = torch.tensor(tokens[1:])
    losses = []
    for start in range(0, len(targets), ROWS_AT_ONCE):
        wanted = targets[start : start + ROWS_AT_ONCE]
        logits = model.lm_head(hidden[start : start + len(wanted)]).double()
        losses.append(torch.nn.functional.cross_entropy(logits, wanted, reduction="none"))
    return torch.cat(losses)


def answers_of(gguf: Path) -> dict[str, Any]:
    """Ask transformers; return what is written."""
    place = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval()
    text = tokenizer((GOLDEN / "texts" / f"{TEXT}.txt").read_text())["input_ids"][:MOST_TEXT_TOKENS]
    with torch.no_grad():
        answers = []
        for prompt in PROMPTS:
            ids = tokenizer(prompt)["input_ids"]
            drawn, margin = greedy_tokens(model, ids)
            answers.append({"prompt": prompt, "prompt_ids": ids, "greedy": drawn, "margin": round(margin, 5)})
            print(f"{prompt!r} {margin:.4f} {tokenizer.decode(drawn)!r}")
        losses = token_losses(model, text)
    return {
        "answers": answers,
        "text": TEXT,
        "text_ids": text,
        "part_len": PART_LEN,
        "part_loss": float(losses[: PART_LEN - 1].mean()),
        "whole_loss": float(losses.mean()),
    }


def main() -> int:
    """Write the model's file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("gguf", type=Path)
    arguments = parser.parse_args()
    golden = answers_of(arguments.gguf)
    path = GOLDEN / "real" / f"{arguments.name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(golden) + "\n")
    print(path, len(golden["text_ids"]), golden["part_loss"], golden["whole_loss"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
