"""Write the skeleton of a text first, then all its parts at the same time (skeleton of thought).

    python examples/programs/skeleton_of_thought.py "staying healthy"

The parts are runs of another program. They begin with the same examples, so each computes its own tip alone, and they
are written side by side instead of one after the other.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

SOLVED = """Write a clear paragraph that expands a tip.

Tip: Buy less.
Paragraph: Before you buy a thing, wait a week. Most wishes fade, and what you did not buy costs you nothing.

Tip: Walk to work.
Paragraph: Half an hour of walking a day is exercise that needs no gym, and gives you time to think.

Tip: Ask early.
Paragraph: A question on the first day takes a minute. The same question after a week takes the week with it.

"""


@sgl.function
def expand(s, solved, tip):
    """Write one part."""
    s += solved + "Tip: " + tip.strip() + "\nParagraph:"
    s += sgl.gen("paragraph", max_tokens=96, stop="\n\n", temperature=0)


@sgl.function
def write(s, solved, topic, num_tips=5):
    """Write a skeleton, and its parts beside each other."""
    s += f"Give {num_tips} short tips about {topic}, each in one line.\n"
    for idx in range(1, num_tips + 1):
        s += f"{idx}." + sgl.gen(f"tip_{idx}", max_tokens=16, stop=[".", "\n"], temperature=0) + "\n"
    parts = [expand(solved, s[f"tip_{idx}"]) for idx in range(1, num_tips + 1)]
    for idx, part in enumerate(parts, 1):
        s += f"\nTip {idx}:" + s[f"tip_{idx}"] + ":" + part["paragraph"] + "\n"


def main() -> None:
    """Write about one topic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", nargs="?", default="staying healthy")
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    with LLM(given.model) as llm:
        sgl.set_default_backend(llm)  # also that of the parts
        print(write.run(SOLVED, given.topic).text())


if __name__ == "__main__":
    main()
