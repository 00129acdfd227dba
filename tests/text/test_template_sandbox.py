from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace.core.errors import InvalidRequestError
from headrace.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
NESTED = "{% set n = namespace(x=['a' * 9999]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
"""A list that holds few objects and prints as 2**99 of them."""
HOARD = (
    "{% set s = 'x' * 999999 %}{% set n = namespace(x=[]) %}"
    "{% for i in range(99999) %}{% set n.x = n.x + [ITEM] %}{% endfor %}"
)
"""A list of many large values."""


def refuse(source: str, **limits: float) -> InvalidRequestError:
    """The error of rendering `source`, which must come soon."""
    limits = {"time_limit_s": 1.0, **limits}
    begin = time.process_time()
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source, {"bos_token": "<s>"}, **limits).render(HELLO)  # type: ignore[arg-type]
    assert time.process_time() - begin < 3
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch PATH') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__']['open']('PATH', 'w') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range.__class__.__subclasses__() }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
        "{{ ['{0.__class__}'] | map('format', 1) | list }}",
        "{{ (messages | map(attribute='__class__') | list)[0] }}",
        "{{ ''|attr('__class__') }}",
        "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include 'PATH' %}",
        "{% import 'PATH' as x %}",
        "{{ lipsum() }}",
        "{{ ('x'|e).__html__.__globals__ }}",
    ],
)
def test_a_template_cannot_reach_python(source: str, tmp_path: Path) -> None:
    path = tmp_path / "made"
    refuse(source.replace("PATH", str(path)))
    assert not path.exists()


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(10**9) %}{{ i }}{% endfor %}",
        "{{ range(10**30) | list }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set s = 'x' * 99999 %}{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for i in [[[[]]]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    ],
)
def test_a_template_cannot_run_without_end(source: str) -> None:
    refuse(source, time_limit_s=0.3)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**10 }}",
        "{{ 10**10 * 'x' }}",
        "{{ [1] * 10**10 }}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        NESTED + "{{ n.x }}",
        NESTED + "{{ n }}",
        NESTED + "{{ n.x | tojson }}",
        NESTED + "{{ n.x | string | length }}",
        "{{ 'x'.encode().ljust(10**10) }}",
        "{{ (1).to_bytes(10**10, 'big') }}",
        HOARD.replace("ITEM", "s[1:]"),
        HOARD.replace("ITEM", "s | upper"),
        HOARD.replace("ITEM", "s.lower()"),
        HOARD.replace("ITEM", "s.split('x')"),
        HOARD.replace("ITEM", "(s | list).copy()"),
        HOARD.replace("ITEM", "[" + "1," * 9999 + "]"),
        "{{ 2 ** 99999999 }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ 'x'.center(width=10**10) }}",
        "{{ '1'.zfill(10**10) }}",
        "{{ ('\t' * 9999).expandtabs(10**6) }}",
        "{{ ('x' * 9999).replace('x', 'y' * 9999) }}",
        "{{ ('x' * 9999) | replace('x', 'y' * 9999) }}",
        "{{ ('y' * 9999).join(['x'] * 9999) }}",
        "{{ (['x'] * 9999) | join('y' * 9999) }}",
        "{{ 'x\n' | indent(10**10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ ('%(a)s' * 9999) % {'a': 'x' * 9999} }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{{ 'x' | center(10**10) }}",
        "{{ strftime_now('%Y' * 10**6) }}",
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_cannot_grow_without_end(source: str) -> None:
    refuse(source)


def test_output_is_bounded_and_the_limit_has_its_own_code() -> None:
    error = refuse("{% for i in range(99) %}0123456789{% endfor %}", max_output_chars=100)
    assert error.code == "template_limit" and error.param == "messages" and "100 characters" in error.message


def test_no_variable_reaches_the_budget() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(InvalidRequestError, match="too long"):
        ChatTemplate(source, time_limit_s=0.2).render(HELLO, **{"budget of this render": None})


def test_long_honest_prompts_pass() -> None:
    content = "word " * 400_000
    source = (
        "{% set n = namespace(out='') %}{% for m in messages %}{% set n.out = n.out ~ '<' + m.role + '>' %}"
        "{{ m.content | trim }}{% endfor %}{{ n.out }}"
    )
    text = ChatTemplate(source).render([{"role": "user", "content": content}] * 2)
    assert len(text) == 2 * (len(content) - 1) + 12


def test_honest_formatting_passes() -> None:
    source = "{{ '%s-%05.1f %%' % ('a', 2.5) }}{{ '{{{}:>4}}|{:>4}'.format(1, 2) }}{{ 'a,b'.split(',') | join('-') }}"
    assert ChatTemplate(source).render(HELLO) == "a-002.5 %{1:>4}|   2a-b"
