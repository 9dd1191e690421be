"""Answer questions from passages that are looked up first (retrieval-augmented generation).

    python examples/programs/rag.py
    python examples/programs/rag.py "What do bees make?"

Instructions stand first, then passages in a fixed order: questions about the same passages share all but themselves.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

SOLVED = """Answer questions with short factual answers, from the passages.

Passages:
[1] Bread is made of flour and water.
Question: What is bread made of?
Reasoning: Passage 1 lists it.
Answer: flour and water

"""
PASSAGES = [
    "Bees live in hives and make honey.",
    "Cows give milk, of which cheese is made.",
    "Olives grow on trees around the Mediterranean.",
]


def retrieve(question: str, passages: list[str], count: int) -> list[str]:
    """Return the passages that have the most words of a question, in the order of the collection."""
    wanted = set(question.lower().strip("?").split())
    best = sorted(passages, key=lambda passage: -len(wanted & set(passage.lower().split())))
    return sorted(best[:count], key=passages.index)


@sgl.function
def answer(s, solved, passages, question, reasoning_tokens=32):
    """Reason over passages, then answer."""
    s += solved + "Passages:\n" + "".join(f"[{idx}] {passage}\n" for idx, passage in enumerate(passages, 1))
    s += "Question: " + question + "\n"
    s += "Reasoning:" + sgl.gen("reasoning", max_tokens=reasoning_tokens, stop="\n", temperature=0)
    s += "\nAnswer:" + sgl.gen("answer", max_tokens=16, stop="\n", temperature=0)


def main() -> None:
    """Answer all questions at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("questions", nargs="*", default=["What do bees make?", "Where do bees live?"])
    given = parser.parse_args()
    items = [(SOLVED, retrieve(question, PASSAGES, 2), question) for question in given.questions]
    with LLM(given.model) as llm:
        for question, state in zip(given.questions, answer.run_batch(items, backend=llm), strict=True):
            print(f"{question}{state['answer']}")


if __name__ == "__main__":
    main()
