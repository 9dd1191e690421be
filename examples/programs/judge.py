"""Judge an essay in six respects at once, and merge them into one grade (branch, solve, merge).

    python examples/programs/judge.py
    python examples/programs/judge.py essay.txt

The essay is computed once. Six judgements are written beside each other, and the grade is drawn from 1 to 10 alone.
"""

import argparse
from pathlib import Path

import trivium.lang as sgl
from trivium import LLM

RESPECTS = {
    "clarity": "Is the essay clear?",
    "originality": "Is the essay original?",
    "evidence": "Does the essay give evidence for what it claims?",
    "structure": "Is the essay well structured?",
    "grammar": "Is the essay free of mistakes of grammar?",
    "relevance": "Does the essay stay with its subject?",
}
SYSTEM = "You judge essays. You are brief and fair.\nEssay:\n"
ESSAY = "Cities need trees. Trees give shade, and streets with shade are cooler. So every street should have trees."


@sgl.function
def judge(s, essay, max_tokens=64, grades="10|[1-9]"):
    """Judge an essay; the grade is one of those that the expression matches."""
    s += sgl.system(SYSTEM + essay)
    forks = s.fork(len(RESPECTS))
    for fork, question in zip(forks, RESPECTS.values(), strict=True):
        fork += sgl.user(question + " Answer in two sentences.")
        fork += sgl.assistant(sgl.gen("judgement", max_tokens=max_tokens, stop="END", temperature=0))
    forks.join()
    merged = "".join(f"{name}: {text.strip()}\n" for name, text in zip(RESPECTS, s["judgement"], strict=True))
    s += sgl.user("These are the judgements:\n" + merged + "Which grade from 1 to 10 do they add up to?")
    s += sgl.assistant(sgl.gen("grade", max_tokens=2, regex=grades, temperature=0))


def main() -> None:
    """Judge one essay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("essay", nargs="?", type=Path, help="a text file; a short essay by default")
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    with LLM(given.model) as llm:
        state = judge.run(ESSAY if given.essay is None else given.essay.read_text(encoding="utf-8"), backend=llm)
        for name, text in zip(RESPECTS, state["judgement"], strict=True):
            print(f"{name}: {text.strip()}")
        print(f"grade: {state['grade']}")


if __name__ == "__main__":
    main()
