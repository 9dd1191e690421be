"""Choose how a story goes on, as HellaSwag is asked: the likeliest of four endings behind solved examples.

    python examples/programs/choose_ending.py
    python examples/programs/choose_ending.py --method joint_probability

Two things are shared: all stories begin with the examples, and the endings of one story with the story. `select` scores
all endings side by side, each by the logprobs of its own tokens alone.
"""

import argparse

import trivium.lang as sgl
from trivium import LLM

SOLVED = """A man sits down at a piano. He puts his hands on the keys and begins to play a slow song.

Two girls stand at a stove. They break eggs into a pan and stir them until they are done.

A boy ties his shoes at the edge of a field. He runs to the ball and kicks it into the goal.

"""
STORIES = {
    "A woman fills a bucket with water and soap. She": [
        " eats the bucket and sings.",
        " washes the car with a sponge.",
        " flies over the mountains.",
        " is a number between two and five.",
    ],
    "The cook cuts the onions and": [
        " puts them into the pot.",
        " marries the onions.",
        " reads them a book.",
        " drives to the moon.",
    ],
}


@sgl.function
def choose(s, examples, story, endings, method):
    """Choose an ending."""
    s += examples + story
    s += sgl.select("ending", endings, choices_method=method)


def main() -> None:
    """Choose for every story."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--method", default="token_length_normalized", help="how endings are compared")
    given = parser.parse_args()
    with LLM(given.model) as llm:
        items = [(SOLVED, story, endings, given.method) for story, endings in STORIES.items()]
        for story, state in zip(STORIES, choose.run_batch(items, backend=llm), strict=True):
            print(f"{story}:{state['ending']}")


if __name__ == "__main__":
    main()
