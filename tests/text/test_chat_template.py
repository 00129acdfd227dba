from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from headrace.core.errors import InvalidRequestError
from headrace.text.byte_tokenizer import CHAT_TEMPLATE, ByteTokenizer
from headrace.text.chat_template import RESERVED_VARIABLES, ChatTemplate, check_variables
from headrace.text.tokenizer import Tokenizer

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]


def call_history(content: Any = None) -> list[dict[str, Any]]:
    arguments = '{"city": "Köln", "n": 1}'
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [*HELLO, {"role": "assistant", "content": content, "tool_calls": [call]}]


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages or HELLO, **options)


def test_chatml_is_rendered() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHAT_TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_demo_model_renders_35_tokens(smollm2: Tokenizer, smollm2_metadata: dict[str, Any]) -> None:
    template = ChatTemplate(smollm2_metadata["tokenizer.chat_template"], smollm2.special_tokens)
    prompt = template.render([{"role": "user", "content": "Name three primary colours."}])
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert len(smollm2.encode(prompt, add_special_tokens=False)) == 35


def test_parts_are_joined_before_rendering() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in render(CHAT_TEMPLATE, [{"role": "user", "content": parts}])


def test_messages_are_checked() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(CHAT_TEMPLATE, [*HELLO, {"role": "robot", "content": "x"}])
    assert caught.value.param == "messages[1].role"


def test_special_tokens_tools_and_variables_are_visible() -> None:
    source = "{{ bos_token }}{{ tools[0].name }}{{ enable_thinking }}{{ eos_token }}"
    assert render(source, tools=[{"name": "f"}], enable_thinking=False) == "<s>fFalse</s>"
    assert render("{{ tools is none }}") == "True"


def test_a_template_that_writes_bos_gives_exactly_one() -> None:
    tokenizer = ByteTokenizer(adds_bos=True)
    prompt = ChatTemplate("{{ bos_token }}" + CHAT_TEMPLATE, tokenizer.special_tokens).render(HELLO)
    assert tokenizer.encode(prompt, add_special_tokens=False).count(256) == 1


@pytest.mark.parametrize("name", sorted(RESERVED_VARIABLES))
def test_reserved_names_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_variables({"fine": 1, name: 1})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_render_refuses_reserved_names_and_check_variables_refuses_what_is_no_object() -> None:
    with pytest.raises(InvalidRequestError, match="bos_token"):
        render("x", bos_token="y")
    with pytest.raises(InvalidRequestError, match="must be an object"):
        check_variables([1])
    assert check_variables(None) == {}
    assert check_variables({"a": 1}) == {"a": 1}


def test_tojson_is_hugging_faces() -> None:
    tools = [{"name": "<f>", "d": "é & 'x'"}]
    assert render("{{ tools | tojson }}", tools=tools) == '[{"name": "<f>", "d": "é & \'x\'"}]'
    assert render("{{ tools[0] | tojson(indent=2) }}", tools=tools) == '{\n  "name": "<f>",\n  "d": "é & \'x\'"\n}'
    assert render("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}") == '{"a":2,"b":1}'


def test_strftime_now_uses_the_clock_it_was_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 7, 1))
    assert template.render(HELLO) == "01 Jul 2026"


def test_blocks_are_trimmed_and_loops_can_break() -> None:
    source = "{% for i in range(5) %}\n  {% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}"
    assert render(source) == "0\n1\n"


def test_generation_blocks_are_their_content() -> None:
    assert render("{% generation %}a{{ messages[0].content }}{% endgeneration %}b") == "ahellob"


def test_a_refusal_of_the_template_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages" and caught.value.code is None


def test_a_failing_template_is_no_server_error() -> None:
    for source in (
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at_all }}",
        "{{ messages | tojson(5, 6, 7) }}",
    ):
        with pytest.raises(InvalidRequestError) as caught:
            render(source)
        assert caught.value.param == "messages"


def test_bad_syntax_is_named_with_its_line() -> None:
    with pytest.raises(InvalidRequestError, match=r"does not compile.*line 2") as caught:
        render("a\n{% if %}")
    assert caught.value.param == "chat_template"


def test_a_template_that_wants_parts_gets_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert render(source) == "hello"


def test_arguments_are_objects_for_templates_that_take_them() -> None:
    source = "{{ (messages | last).tool_calls[0].function.arguments | tojson }}"
    assert render(source, call_history()) == '{"city": "Köln", "n": 1}'
    items = "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}<{{ k }}={{ v }}>{% endfor %}"
    assert render(items, call_history()) == "<city=Köln><n=1>"


def test_arguments_are_text_for_templates_that_write_them_out() -> None:
    source = "{{ messages[1].tool_calls[0].function.arguments }}"
    assert render(source, call_history()) == '{"city": "Köln", "n": 1}'
    assert render(source.replace("arguments", "arguments + '.'"), call_history()) == '{"city": "Köln", "n": 1}.'


def test_missing_content_beside_calls_is_what_the_template_asks_for() -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    concatenates = "{% for m in messages %}{{ '<' + m.content + '>' }}" + calls + "{% endfor %}"
    assert render(concatenates, call_history()) == '<hello><>{"city": "Köln", "n": 1}'
    asks_for_none = "{% for m in messages %}{% if m.content is none %}" + calls + "{% endif %}{% endfor %}"
    assert render(asks_for_none, call_history()) == '{"city": "Köln", "n": 1}'


def test_the_last_message_can_be_continued() -> None:
    messages = [*HELLO, {"role": "assistant", "content": "The answer"}]
    prompt = render(CHAT_TEMPLATE, messages, add_generation_prompt=False, continue_final_message=True)
    assert prompt.endswith("<|im_start|>assistant\nThe answer")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        render(CHAT_TEMPLATE, messages, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        render("fixed", messages, add_generation_prompt=False, continue_final_message=True)


def test_a_huge_template_is_refused_unread() -> None:
    with pytest.raises(InvalidRequestError, match="characters"):
        ChatTemplate("x" * ((1 << 20) + 1))


def test_the_template_is_compiled_once() -> None:
    template = ChatTemplate(CHAT_TEMPLATE)
    template.render(HELLO)
    compiled = template._template
    template.render(HELLO)
    assert compiled is not None and template._template is compiled


def test_importing_text_loads_neither_jinja2_nor_tokenizers() -> None:
    code = (
        "import sys, headrace.text as t; t.ChatTemplate('x');"
        "bad = {'jinja2', 'tokenizers', 'numpy', 'transformers'} & set(sys.modules); sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
