"""Ask many things at once from an asyncio program: `AsyncLLM` runs the engine in a thread of this process.

    python examples/fan_out.py
    python examples/fan_out.py --model smollm2 --answers 16

The answers run in one batch; each is printed when it is done. One that is longer than a line is cut off: leaving an
answer's stream early aborts it, and frees its memory for the others.
"""

import argparse
import asyncio

from trivium import AsyncLLM, SamplingParams

MOST_CHARS = 60


async def ask(llm: AsyncLLM, number: int) -> str:
    """Continue one sentence, up to a line's length."""
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=number, max_tokens=48)
    text = ""
    async for news in llm.generate(f"Fact number {number} about the sea:", params):
        text += news.text
        if len(text) > MOST_CHARS:
            break
    return f"{number}:{text[:MOST_CHARS]!r}"


async def run(model: str, num_answers: int) -> None:
    """Ask everything, and print in the order of arrival."""
    async with AsyncLLM(model, max_num_seqs=16) as llm:
        for done in asyncio.as_completed([ask(llm, number) for number in range(1, num_answers + 1)]):
            print(await done)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--answers", type=int, default=8)
    given = parser.parse_args()
    asyncio.run(run(given.model, given.answers))


if __name__ == "__main__":
    main()
