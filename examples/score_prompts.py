"""Score texts: how likely does a model find each of them? Nothing is generated.

    python examples/score_prompts.py
    python examples/score_prompts.py --model smollm2 < texts.txt        (a text a line)

Prints each text's perplexity (lower: more expected), and its least expected token. All texts run together.
"""

import argparse
import math
import sys

from trivium import LLM, SamplingParams

TEXTS = (
    "The cat sat on the mat.",
    "The cat sat on the parliament.",
    "Mat the on sat cat the.",
)


def main() -> None:
    """Score the texts of standard input, or three of our own when it is a terminal or empty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    lines = [] if sys.stdin.isatty() else [line.strip() for line in sys.stdin if line.strip()]

    # max_tokens=0 generates nothing; prompt_logprobs=0 reports each token's own logprob, and no alternatives.
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    with LLM(given.model) as llm:
        for output in llm.generate(lines or TEXTS, params):
            # Nothing precedes the first token, so it has no score.
            scored = [entry for entry in output.prompt_logprobs or [] if entry is not None]
            if not scored:
                print(f"{'-':>10}  {output.prompt}  (a single token has no score)")
                continue
            mean = sum(entry.logprob for entry in scored) / len(scored)
            surprise = min(scored, key=lambda entry: entry.logprob)
            token = llm.frontend.tokenizer.token_text(surprise.token_id)
            print(f"{math.exp(-mean):10.1f}  {output.prompt}  (least expected: {token!r})")


if __name__ == "__main__":
    main()
