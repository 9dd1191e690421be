"""Chats of several turns, many at a time.

    python examples/programs/multi_turn_chat.py
    python examples/programs/multi_turn_chat.py --chats 8 --max-tokens 32

Every turn finds all turns before it in the cache, the model's own answers included, to the token: of a prompt, only the
new message is computed.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

QUESTIONS = ["Name a city in {country}.", "What is it known for?", "Which month is best for a visit?"]
COUNTRIES = ["France", "Japan", "Peru", "Kenya", "Norway", "India", "Egypt", "Canada"]


@sgl.function
def chat(s, messages, max_tokens):
    """Answer message after message."""
    for idx, message in enumerate(messages):
        s += sgl.user(message)
        s += sgl.assistant(sgl.gen(f"answer_{idx}", max_tokens=max_tokens, temperature=0))


def main() -> None:
    """Hold all chats at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--chats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    given = parser.parse_args()
    items = [
        {"messages": [each.format(country=country) for each in QUESTIONS], "max_tokens": given.max_tokens}
        for country in COUNTRIES[: given.chats]
    ]
    with LLM(given.model) as llm:
        for state in chat.run_batch(items, backend=llm):
            meta = state.get_meta_info(f"answer_{len(QUESTIONS) - 1}")
            share = f"{meta['cached_tokens']} of {meta['prompt_tokens']}"
            print(f"{state['answer_0'].strip()}  (last prompt: {share} tokens cached)")


if __name__ == "__main__":
    main()
