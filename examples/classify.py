"""Classify texts with a few examples in the prompt, by the likelihood of each label.

    python examples/classify.py
    python examples/classify.py --model smollm2 "What a waste of an evening."

All prompts begin with the same examples. Their KV is computed once: the cache is exact to the token, so that every
further prompt computes only its own text, and every further label only the label.
"""

import argparse

from trivium import LLM, SamplingParams

LABELS = (" positive", " negative")
EXAMPLES = """Review: A wonderful film from beginning to end.
Mood: positive

Review: I fell asleep after ten minutes.
Mood: negative

Review: The actors were superb and the story moved me.
Mood: positive

Review: Dull, loud and far too long.
Mood: negative

"""
TEXTS = ("I loved every minute of it.", "The plot makes no sense at all.", "Brilliant, funny, warm.")


def score(llm: LLM, stem: list[int], label: str) -> tuple[float, int]:
    """Return the logprob of a label behind a prompt, and how many tokens came from the cache."""
    ids = stem + llm.frontend.tokenizer.encode(label, add_special_tokens=False)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprob_start=len(stem))
    [output] = llm.generate([ids], params)
    return sum(entry.logprob for entry in output.prompt_logprobs or [] if entry is not None), output.num_cached_tokens


def main() -> None:
    """Score every label behind every text, and show the more likely one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", default=TEXTS)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()

    with LLM(given.model) as llm:
        for text in given.texts:
            stem = llm.frontend.tokenizer.encode(f"{EXAMPLES}Review: {text}\nMood:", add_special_tokens=True)
            scores = {label: score(llm, stem, label) for label in LABELS}
            best = max(scores, key=lambda label: scores[label][0])
            cached = ", ".join(str(num_cached) for _, num_cached in scores.values())
            print(f"{best.strip():8}  {text}  (of {len(stem)} tokens, {cached} were cached)")


if __name__ == "__main__":
    main()
