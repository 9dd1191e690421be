"""Ask a Trivium server a question with OpenAI's client, and show the answer while it grows.

    trivium serve smollm2                                     (in another terminal)
    python examples/chat_client.py "What is the capital of France?"

Any server that speaks OpenAI's API will do. Needs `pip install openai`.
"""

import argparse

from openai import OpenAI


def main() -> None:
    """Send one question; print the answer, then what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--model", default="smollm2", help="name under which the server serves its model")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()

    with OpenAI(base_url=given.url, api_key="none") as client:
        stream = client.chat.completions.create(
            model=given.model,
            messages=[
                {"role": "system", "content": "You answer in one sentence."},
                {"role": "user", "content": given.question},
            ],
            max_tokens=given.max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
            elif chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                cached = chunk.usage.prompt_tokens_details.cached_tokens
                print(f"\n({chunk.usage.prompt_tokens} tokens in, {cached} of them cached; ", end="")
                print(f"{chunk.usage.completion_tokens} out)")


if __name__ == "__main__":
    main()
