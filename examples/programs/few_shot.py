"""Answer multiple-choice questions behind solved examples, as MMLU is asked: one token an answer.

    python examples/programs/few_shot.py
    python examples/programs/few_shot.py --model smollm2

All questions of a subject share its examples. They run at once, and the examples are still computed only once.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

SUBJECT = "The following are multiple choice questions (with answers) about geography.\n\n"
SOLVED = [
    ("Which river flows through Cairo?", ["Rhine", "Nile", "Amazon", "Volga"], "B"),
    ("Which is the largest ocean?", ["Pacific", "Atlantic", "Arctic", "Indian"], "A"),
    ("On which continent is Chile?", ["Africa", "Asia", "Europe", "South America"], "D"),
    ("What is the capital of Italy?", ["Milan", "Turin", "Rome", "Naples"], "C"),
    ("Which country has the most people?", ["India", "Peru", "Norway", "Chad"], "A"),
]
ASKED = [
    ("What is the capital of France?", ["Lyon", "Paris", "Nice", "Lille"]),
    ("Which desert is in Africa?", ["Sahara", "Gobi", "Mojave", "Atacama"]),
    ("Which country is an island?", ["Poland", "Chad", "Bolivia", "Iceland"]),
]


def written(question: str, choices: list[str], answer: str | None = None) -> str:
    """Write a question, solved or not."""
    lines = [question, *(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True)), "Answer:"]
    return "\n".join(lines) + ("" if answer is None else f" {answer}\n\n")


@sgl.function
def answer(s, examples, question):
    """Write the letter of an answer."""
    s += examples + question
    s += sgl.gen("answer", max_tokens=1, temperature=0)


def main() -> None:
    """Ask everything at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    examples = SUBJECT + "".join(written(*solved) for solved in SOLVED)
    with LLM(given.model) as llm:
        items = [{"examples": examples, "question": written(*asked)} for asked in ASKED]
        for (question, _), state in zip(ASKED, answer.run_batch(items, backend=llm), strict=True):
            meta = state.get_meta_info("answer")
            print(f"{question}{state['answer']}  ({meta['cached_tokens']} of {meta['prompt_tokens']} tokens cached)")


if __name__ == "__main__":
    main()
