"""Draw the same answer again: alone, in a crowd, in small pieces, after the cache has seen it.

    python examples/same_seed.py
    python examples/same_seed.py --model smollm2 --seed 7

A request's tokens and logprobs depend on its prompt, its parameters and its seed, and on nothing else. So a drawn
answer is as reproducible as a greedy one, also while a server is busy with other people's requests.
"""

import argparse

from trivium import LLM, SamplingParams

PROMPT = "My favourite animal is the"
CROWD = ["Once upon a time", "The weather today", "In the beginning", "Two and two", "She said that"]


def main() -> None:
    """Draw one answer under four conditions and compare tokens and logprobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    params = SamplingParams(temperature=0.9, top_p=0.95, seed=given.seed, max_tokens=24, logprobs=0)

    with LLM(given.model) as llm:
        answers = {
            "alone": llm.generate(PROMPT, params)[0],
            "again, its prompt cached": llm.generate(PROMPT, params)[0],
            "in a crowd": llm.generate([*CROWD, PROMPT], params)[-1],
        }
    with LLM(given.model, max_num_batched_tokens=4, prefix_cache=False) as llm:
        answers["prompt in chunks of four tokens"] = llm.generate(PROMPT, params)[0]

    first = answers["alone"].outputs[0]
    print(f"{PROMPT}{first.text}\n")
    for condition, output in answers.items():
        answer = output.outputs[0]
        is_same = answer.token_ids == first.token_ids and answer.logprobs == first.logprobs
        print(f"{condition}: {'the same bits' if is_same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
