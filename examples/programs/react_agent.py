"""An agent that thinks, acts and looks at what comes of it, in turns (ReAct), with a search tool.

    python examples/programs/react_agent.py
    python examples/programs/react_agent.py --question "Where was the author of Emma born?"

The prompt grows by a thought, an action and an observation a turn. Everything before keeps its tokens, so every turn
computes only the observation that is new to the model.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

SOLVED = """Question: Where was the painter of The Scream born?
Thought 1: I need to find who painted The Scream.
Action 1: Search[The Scream]
Observation 1: The Scream is a picture by Edvard Munch, of 1893.
Thought 2: Now I need to know where Edvard Munch was born.
Action 2: Search[Edvard Munch]
Observation 2: Edvard Munch, a Norwegian painter, was born in Adalsbruk.
Thought 3: Edvard Munch was born in Adalsbruk.
Action 3: Finish[Adalsbruk]

"""
ARTICLES = ["Emma is a novel by Jane Austen, of 1815.", "Jane Austen, an English novelist, was born in Steventon."]


def search(action: str) -> str:
    """Return the article that has the most words of an action."""
    wanted = set(action.strip("]").replace("[", " ").split())
    return max(ARTICLES, key=lambda article: len(wanted & set(article.replace(",", "").split())))


@sgl.function
def solve(s, solved, question, look_up=search, last="Finish", most_turns=5):
    """Take turns until an action begins with `last`."""
    s += solved + "Question: " + question + "\n"
    for turn in range(1, most_turns + 1):
        s += f"Thought {turn}:" + sgl.gen(f"thought_{turn}", max_tokens=40, stop="\n", temperature=0)
        s += f"\nAction {turn}:" + sgl.gen(f"action_{turn}", max_tokens=20, stop="\n", temperature=0)
        if s[f"action_{turn}"].strip().startswith(last):
            break
        s += sgl.tool(look_up, {"action": s[f"action_{turn}"]}, into="found")
        s += f"\nObservation {turn}: " + s["found"] + "\n"


def main() -> None:
    """Solve one question and show how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--question", default="Where was the author of Emma born?")
    given = parser.parse_args()
    with LLM(given.model) as llm:
        print(solve.run(SOLVED, given.question, backend=llm).text().removeprefix(SOLVED))


if __name__ == "__main__":
    main()
