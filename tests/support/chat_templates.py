"""Chat templates of the tests' own making: one that shows tools in the way of Hermes, one that is choosy."""

from __future__ import annotations

HERMES = """\
{%- if tools %}<|im_start|>system
Tools: <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role + '\\n' + message.content }}
{%- for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""

REASONING_HERMES = HERMES + "{# </think> #}"
"""The same, of a model that reasons."""

CHOOSY = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('there is no system role') }}{% endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
[{{ message.role }}]{{ message.content }}
{%- endfor %}"""
"""Refuses a system turn, and roles that do not alternate, as Gemma's does."""
