"""Let a model call a function, and answer from what it returns.

    python examples/call_tools.py
    python examples/call_tools.py --model DIRECTORY

The template shows the function to the model, and tells by how it writes calls in which dialect. A model whose own does
needs none of this. The call is required and strict, so that even a small model names a city that there is.
"""

import argparse
import json

from trivium import LLM, SamplingParams

HOURS = {"Oslo": 13, "Lima": 7}
CITY = {"city": {"enum": list(HOURS)}}
TOOL = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {"type": "object", "properties": CITY, "required": ["city"], "additionalProperties": False},
        "strict": True,
    },
}
TEMPLATE = """{%- if tools %}<|im_start|>system
Tools: {{ tools | map(attribute='function') | list | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role + '\\n' + message.content }}
{%- for call in message.tool_calls %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def main() -> None:
    """Ask, call, answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    messages = [{"role": "user", "content": "What time is it in Oslo?"}]
    params = SamplingParams(temperature=0, max_tokens=96)

    with LLM(given.model, chat_template=TEMPLATE) as llm:
        [asked] = llm.chat(messages, params, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
        messages.append(asked.outputs[0].message)
        for call in asked.outputs[0].tool_calls:
            city = json.loads(call.arguments)["city"]
            print(f"{call.name}({city})")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{HOURS[city]}:00"})
        [told] = llm.chat(messages, params, tools=[TOOL], tool_choice="none")
        print(told.outputs[0].content)


if __name__ == "__main__":
    main()
