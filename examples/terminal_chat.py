"""Talk to a model in the terminal, without a server: the smallest whole chat program.

    python examples/terminal_chat.py
    python examples/terminal_chat.py --model smollm2 --temperature 0

An empty line, or Ctrl-D, ends it. (`trivium chat` does more.) Each turn sends the whole conversation; what was said
before comes from the prefix cache, so that a turn costs its own tokens only.
"""

import argparse
import asyncio

from trivium import AsyncLLM, SamplingParams


async def talk(model: str, params: SamplingParams) -> None:
    """Read, answer, remember, until nothing is said."""
    messages: list[dict[str, str]] = []
    async with AsyncLLM(model) as llm:
        while said := await asyncio.to_thread(read_line):
            messages.append({"role": "user", "content": said})
            answer = ""
            async for news in llm.chat(messages, params):
                print(news.text, end="", flush=True)
                answer += news.text
            print()
            messages.append({"role": "assistant", "content": answer})


def read_line() -> str:
    """Read what the user says; nothing at the end of input."""
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--max-tokens", type=int, default=256)
    given = parser.parse_args()
    params = SamplingParams(temperature=given.temperature, max_tokens=given.max_tokens)
    asyncio.run(talk(given.model, params))


if __name__ == "__main__":
    main()
