"""Solve a question along many paths at once and take the answer that most of them reach (tree of thought).

    python examples/programs/tree_of_thought.py
    python examples/programs/tree_of_thought.py --branches 3 "A pen costs 2 euros. What do 7 pens cost?"

Each level forks every state: plans, carries them out, thinks them over, answers. What branches share is computed once.
"""

import argparse
import re
from collections import Counter

import trivium.lang as sgl
from trivium import LLM

STEPS = {
    "plan": "Write a short plan for answering this question, without answering it: {question}",
    "work": "Carry out the plan, step by step.",
    "doubt": "Think your solution over. Is anything wrong with it?",
    "answer": "Give the final answer as a number.",
}
FIRST_TURN = "{question}"


@sgl.function
def think(s, question, branches, max_tokens=64, temperature=0.7):
    """Fork at every step; returns the answers of all leaves."""
    states = [s]
    for name, ask in STEPS.items():
        forks = [fork for state in states for fork in state.fork(branches)]
        for fork in forks:
            fork += sgl.user(ask.format(question=question))
            fork += sgl.assistant(sgl.gen(name, max_tokens=max_tokens, temperature=temperature))
        states = forks
    return [leaf["answer"] for leaf in states]


def most_common_number(answers: list[str]) -> str | None:
    """Return the number that most answers end with."""
    numbers = [found[-1] for answer in answers if (found := re.findall(r"\d+", answer))]
    return Counter(numbers).most_common(1)[0][0] if numbers else None


def main() -> None:
    """Solve one question."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="Ann has 3 boxes of 12 eggs and eats 4 eggs. How many are left?")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--branches", type=int, default=2)
    given = parser.parse_args()
    with LLM(given.model) as llm:
        state = think.run(given.question, given.branches, backend=llm)
        answers = state.ret_value
        print(f"{len(answers)} answers, most often: {most_common_number(answers)}")


if __name__ == "__main__":
    main()
