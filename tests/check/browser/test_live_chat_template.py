"""Live views: in the page a chat becomes the tokens that the library makes of it."""

import re

import pytest
from playwright.sync_api import Error

from browser.modules import JINJA, engine_modules
from browser.texts import ENCODE, chats
from firsttoken.live.chat import TEMPLATE, _parts
from firsttoken.models.chat import ChatTemplate
from firsttoken.models.gguf import read_gguf
from firsttoken.models.tokenizer import tokenizer
from models.test_chat import MARKS, TEMPLATES
from models.test_tokenizer import END, trained, write_gguf  # noqa: F401

pytestmark = pytest.mark.skipif(not JINJA.exists(), reason="run `make book`: it fetches Jinja")

NAMES = ["<|start|>", "<|end|>", "<|turn|>", *MARKS]
FAMILIES = TEMPLATES | {
    "as it is": TEMPLATE,
    "Llama 3's ways": """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|turn|>" }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|turn|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "Qwen 3's ways": """\
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
        and not(message.content.startswith('<') and message.content.endswith('>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set thoughts = '' %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set thoughts = thoughts.lstrip('\\n') %}
        {%- endif %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role }}
    {%- if loop.index0 > ns.last and (loop.last or thoughts) %}
        {{- '\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n' }}
    {%- endif %}
    {{- '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if thinking is defined and thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
}


@pytest.fixture
def open_template(stage, trained, tmp_path):  # noqa: F811
    """Open a template over a small file, in Python and in a page: what gives (template, page)."""
    file = write_gguf(tmp_path / "words.gguf", trained, "smollm", NAMES)
    page = engine_modules(stage, "tokenizer", "chat_template")
    page.evaluate(
        "(metadata) => { window.words = tokenizerOfGguf(metadata); }", read_gguf(file).metadata
    )

    def opened(source):
        page.evaluate("(source) => { window.chat = createChatTemplate(source, words); }", source)
        return ChatTemplate(source, tokenizer(file)), page

    return opened


@pytest.mark.parametrize("name", FAMILIES)
def test_chats_have_the_tokens_of_the_library(open_template, name):
    template, page = open_template(FAMILIES[name])
    given, n_refused = chats([*NAMES, END]), 0
    for (messages, prompt), found in zip(given, page.evaluate(ENCODE, given), strict=True):
        try:
            ids = template.encode(messages, prompt)
        except ValueError as error:
            n_refused += 1
            assert found == str(error)
            continue
        parts = [list(part) for part in _parts(ids, template._tokenizer)]
        assert found == [ids, parts], messages
    assert n_refused < len(given)


HI = [{"role": "user", "content": "Hi"}]


WRONG = [
    ("{% for", HI, "source must be a template in Jinja"),
    ("{{ raise_exception('no system, please') }}", HI, "chat template: no system, please"),
    ("{{ messages[5].content.strip() }}", HI, "refused by the chat template"),
    ("{{ ''.constructor.constructor('1')() }}", HI, "refused by the chat template"),
    ("{% for i in range(10**9) %}{% endfor %}", HI, "range(0, 1000000000, 1) is too long"),
    ("{% for i in range(1, 2, 0) %}{% endfor %}", HI, "range(1, 2, 0) is too long"),
    ("", [], "at least one; got []"),
    ("", None, "at least one; got null"),
    ("", ["Hi"], "must be objects with a role"),
    ("", [{"content": "Hi"}], "must be objects with a role"),
    ("", [HI[0] | {"content": "".join(map(chr, range(0xFDD0, 0xFDF0)))}], "U+FDD0"),
]


def test_errors_name_what_is_wrong(open_template):
    for source, chat, message in WRONG:
        with pytest.raises(Error, match=re.escape(message)):
            _, page = open_template(source)
            page.evaluate("(messages) => chat.encode(messages)", chat)


def test_dates_are_english(stage, open_template):
    """Whatever language the browser has: a model reads what its makers wrote."""
    source = "{{ strftime_now('%d %b %B %Y, %Y-%m-%d') }}"
    template, page = open_template(source)
    assert page.evaluate(ENCODE, [[HI, True]])[0][0] == template.encode(HI)
