#!/usr/bin/env python3
"""Writes rendered.json beside it: chat templates and what Jinja makes of them, with the settings of Hugging Face's
apply_chat_template (sandboxed, trim_blocks, lstrip_blocks, loop controls, its tojson and raise_exception).

    pip install jinja2==3.1.6; python tests/golden/chat/generate.py

Each case is {"name", "template", "messages", "text"} or, where the template raises, {..., "raises"}. The templates are
written for this purpose, in the manner of those that models bring; nothing is taken from elsewhere.
"""
import json
import os

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Raised(Exception):
    pass


class Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks the assistant's text and says nothing."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise Raised(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


TALK = [
    {"role": "system", "content": " Be brief.\n"},
    {"role": "user", "content": "Wie hei\u00dft das?  <b>\"x\" & 'y'</b>\n\n"},
    {"role": "assistant", "content": "\u00c4pfel \U0001f34e and {{ braces }} {% too %}"},
    {"role": "user", "content": "1\t2"},
]
SHORT = [{"role": "user", "content": "Hi"}]
ODD = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]

TURNS = """{% for message in messages %}
<|{{ message['role'] }}|>
{{ message.content | trim }}<|end|>
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""

STRICT = """{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] | trim + '\\n\\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = '' -%}
    {%- set rest = messages -%}
{%- endif -%}
{{- bos_token -}}
{%- for m in rest -%}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Roles have to take turns: user, assistant, user, ...') -}}
    {%- endif -%}
    {%- if m.role == 'user' -%}
        {{- '[Q] ' ~ (system if loop.first else '') ~ m.content.strip() ~ ' [/Q]' -}}
    {%- elif m.role == 'assistant' -%}
        {{- ' ' + m.content | trim + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

NAMESPACE = """{%- set ns = namespace(users=0, last='', seen=[]) %}
{%- for m in messages if m.role != 'system' %}
    {%- if m.role == 'user' %}{% set ns.users = ns.users + 1 %}{% endif %}
    {%- set ns.last = m.role %}
    {%- set ns.seen = ns.seen + [m.role[:2]] %}
{%- else %}
    nobody
{%- endfor %}
{{- ns.users }}|{{ ns.last }}|{{ ns.seen | join('-') }}|{{ ns.seen }}|{{ missing }}|{{ missing | default('none') }}
{%- if tools is not none and tools %} tools{% endif %}
"""

MACRO = """{%- macro header(role, mark='#', level=1) -%}
{{ mark * level }} {{ role | upper }}{{ '!' if role == 'user' }}
{% endmacro -%}
{%- for m in messages -%}
{{ header(m.role) }}{{ header(m.role, level=2, mark='=') -}}
{%- generation %}{{ m.content | length }}{% endgeneration %}

{% endfor -%}
"""

MODEL_WITH_JSON = """{%- for m in messages %}
{{ m | tojson }}
{{ m.items() | list | length }} {{ {'a': [1, 2.5, none, true], 'b': {}} | tojson(indent=2) }}
{%- endfor %}
"""

LOOPS = """{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last -}}
{{ ' after ' ~ loop.previtem.role if loop.previtem is defined }}{{ ' before ' ~ loop.nextitem.role if not loop.last }}
{%+ if loop.index == 3 %}{% break %}{% endif %}
{% if m.role == 'system' %}{% continue %}{% endif %}
after
{% endfor %}
{% for k, v in {'x': 1, 'y': 'two'}.items() %}{{ k }}={{ v }};{% endfor %}
{% for c in 'a\u00e9' %}[{{ c }}]{% endfor %}
{% for i in range(2, 8, 3) %}{{ i }},{% endfor %}
"""

EXPRESSIONS = """{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 }} {{ 2 + 3 * 4 }} {{ 10 - 2 - 3 }}
{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 'b' in 'abc' }} {{ 3 not in [1, 2] }} {{ not true or true }} {{ not (true or true) }}
{{ 'x' if false else 'y' }}|{{ 'x' if false }}|{{ 1 if 0 else 2 if 0 else 3 }}
{{ none }} {{ true }} {{ 1.5 }} {{ 100000000000 }} {{ [1, 'it\\'s', "q", none] }} {{ {'k': ['v']} }} {{ (1, 2) | list }}
{{ messages[-1].role }} {{ messages[1]['content'][:3] }} {{ 'abcdef'[1:5:2] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][-2:] }}
{{ 'abc' is string }} {{ 5 is number }} {{ missing is defined }} {{ none is none }} {{ messages is iterable }}
{{ {} is mapping }} {{ 4 is even }} {{ 9 is divisibleby(3) }} {{ 1 is in [1] }} {{ 'a' is not none }}
{{ '' or 'other' }} {{ 'one' and 'two' }} {{ [] | length }} {{ 'a-b-c'.split('-') }} {{ ' a  b '.split() }}
{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith(('x', 'lo')) }} {{ 'xxabcxx'.strip('x') }} {{ ' a '.lstrip() }}|
{{ 'hELLO wORLD'.title() }} {{ 'they\\'re here' | title }} {{ 'stra\u00dfe' | upper }} {{ '\u00c4B' | lower }} {{ 'aB' | capitalize }}
{{ 'aXbX'.replace('X', '-') }} {{ 'a,b' | replace(',', ';') }} {{ '12' | int + 1 }} {{ 'x' | int }} {{ -3 | abs }}
{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }} {{ [3, 1] | first }} {{ [3, 1] | last }}
{{ [0, 1, ''] | select | list }} {{ ['a', 'b'] | map('upper') | join }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b', 2) }}
{{ {'a': 1, 'b': 2} | items | list | length }} {{ {'a': 1}.keys() | list }} {{ ['a'] + ['b'] }} {{ 'ab' * 2 }} {{ 'a' 'b' }}
{{ 'x'.join(['1', '2']) }} {{ 'abcb'.find('b') }} {{ 'prefix-rest'.removeprefix('prefix-') }} {{ '\\n\\t' | length }}
"""

NUMBERS = """{%- set low = -4294967296 * 2147483648 %}
{{ -3 | abs }} {{ 2.5 | abs }} {{ -2.5 | abs }} {{ true | abs }} {{ (-(-4294967296 * 2147483648 + 1)) | abs }}
{{ 2.9 | int }} {{ -2.9 | int }} {{ true | int }} {{ '42.23' | int }} {{ ' +7 ' | int }} {{ '-8' | int }} {{ '1e3' | int }} {{ '+-1' | int }}
{{ 'x' | int(5) }} {{ '' | int }} {{ none | int }} {{ [1] | int(default=4) }} {{ 'inf' | int }} {{ 'nan' | int(2) }} {{ '1e999' | int }}
{{ '1e-999' | int }} {{ 9007199254740993 | int }} {{ (10000000000.0 * 100000000) | int }} {{ '9007199254740993' | int }} {{ '12' | int(0, 10) }} {{ '-' | int }} {{ '+' | int }}
{{ 5 % 3 }} {{ -5 % 3 }} {{ 5 % -3 }} {{ -5 % -3 }} {{ 6 % -3 }} {{ 5 // -3 }} {{ -5 // -3 }} {{ 6 // -3 }} {{ -6 // 3 }} {{ 7 % -1 }} {{ 7 // -1 }}
{{ (2147483649 * 2147483648) % (-(-4294967296 * 2147483648 + 1)) }} {{ low // 3 }} {{ low % 3 }}
{{ low % -1 }} {{ -3 is odd }} {{ -4 is odd }} {{ low is odd }} {{ (low + 1) is odd }}
"""

SPACES = """start
   {% if true %}
   inner
   {% endif %}
 {{ 'x' }}   {# remark #}
  {# alone
  #}
next {%- if true %} joined {% endif -%}   end
{% set text %}
 block {{ 1 }}
{% endset %}
[{{ text }}]
{{- ' tight ' -}}

last


"""

CASES = [
    ("turns", TURNS, TALK), ("turns_short", TURNS, SHORT), ("strict", STRICT, TALK), ("strict_short", STRICT, SHORT),
    ("strict_raises", STRICT, ODD), ("namespace", NAMESPACE, TALK), ("namespace_empty", NAMESPACE, TALK[:1]),
    ("macro", MACRO, TALK), ("json", MODEL_WITH_JSON, TALK), ("loops", LOOPS, TALK), ("expressions", EXPRESSIONS, TALK),
    ("numbers", NUMBERS, SHORT),
    ("spaces", SPACES, SHORT), ("text_only", "no statements at all", SHORT), ("empty", "", SHORT),
    ("line_ends", "a\r\n{% if true %}\r\nb\r{% endif %}\r\n", SHORT),
]


def main():
    env = environment()
    out = []
    for name, template, messages in CASES:
        case = {"name": name, "template": template, "messages": messages}
        try:
            case["text"] = env.from_string(template).render(
                messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None,
                documents=None)
        except Raised as raised:
            case["raises"] = str(raised)
        out.append(case)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rendered.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


main()
