"""Templates come with untrusted files; whatever they do, the caller gets one clear error in time."""

import asyncio
import time

import pytest

from engine.chat.render_child import _added
from engine.chat.template import BadTemplate, TemplateRenderer, TooManyTemplates
from engine.chat.template_messages import merge_turns, spell_results
from engine.chat.types import ChatTemplate, Message
from engine.core.errors import InputFault
from engine.core.ownership import request_owner
from tests.support.servers import runs, wait_for
from tests.support.unhindered import Stopwatch

HELLO = [Message(role="user", content="hello")]

ESCAPES = [
    "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ ('{0.__class__}'|attr('format'))(1) }}",
    "{% set x = ''|attr('__class__') %}{{ x.mro() }}",
    "{{ lipsum.__globals__['os'].environ }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include '/etc/hostname' %}",
    "{% import 'os' as os %}",
]
BOMBS = [
    "{{ 'A' * 1000000000 }}",
    "{{ 1000000000 * 'A' }}",
    "{{ [1] * 1000000000 }}",
    "{{ 2 ** 100000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    (
        "{% set ns = namespace(s='AAAAAAAA') %}"
        "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}"
    ),
    "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
    (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(9999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
]


def test_slow_templates_of_requests_do_not_delay_those_of_models():
    """Each of six different ones loops until it is stopped."""
    renderer = TemplateRenderer(timeout_s=0.5)
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    async def scenario():
        own = ChatTemplate(source="{{ messages[0]['content'] }}")
        await renderer.render(own, HELLO)
        hostile = [
            asyncio.create_task(renderer.render(ChatTemplate(source=slow + str(n)), HELLO, by_client=True))
            for n in range(12)
        ]
        await asyncio.sleep(0.1)
        waits = []
        for _ in range(5):  # starting the child of the hostile ones stops this process for as long as that waits
            begun = Stopwatch(renderer.child.pid)
            assert (await renderer.render(own, HELLO)).prompt == "hello"
            waits.append(begun.seconds())
        assert not all(task.done() for task in hostile)
        return min(waits), await asyncio.gather(*hostile, return_exceptions=True)

    try:
        waited, ends = asyncio.run(scenario())
    finally:
        renderer.close()
    assert waited < 0.5
    assert sum(isinstance(end, TooManyTemplates) for end in ends) == 4
    assert sum(isinstance(end, BadTemplate) for end in ends) == 8


def test_a_variable_named_self_is_refused_by_its_name(renderer):
    with pytest.raises(InputFault, match="chat_template_kwargs"):
        render(renderer, "{{ x }}", x=1, self=2)


@pytest.fixture(scope="module")
def renderer():
    renderer = TemplateRenderer(timeout_s=1.0)
    renderer.warm()
    yield renderer
    renderer.close()


def render(renderer, source, **variables):
    return asyncio.run(renderer.render(ChatTemplate(source=source), HELLO, variables=variables))


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_reach_nothing(renderer, source):
    try:
        shown = render(renderer, source).prompt
    except BadTemplate:
        return
    assert shown == "", "an unsafe attribute renders as nothing"


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_end_in_an_input_fault_and_the_next_render_works(renderer, source):
    began = time.monotonic()
    with pytest.raises(InputFault) as caught:
        render(renderer, source)
    assert time.monotonic() - began < 40, "a stopped child may not hold its caller"
    assert "template" in str(caught.value)
    assert render(renderer, None).prompt.endswith("<|im_start|>assistant\n")


def test_an_endless_template_is_stopped_then_paused(renderer):
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i %}{% endfor %}{% endfor %}{{ 1 }}"
    first = renderer.child.pid
    for _ in range(2):
        with pytest.raises(BadTemplate, match="ran longer than 1 s"):
            render(renderer, source)
    assert renderer.child.pid is None
    with pytest.raises(BadTemplate, match="paused"):
        render(renderer, source)
    assert renderer.child.pid is None, "a paused template must not start a child"
    render(renderer, None)
    assert renderer.child.pid != first


def test_a_client_pauses_a_template_neither_for_others_nor_for_shorter_conversations():
    renderer = TemplateRenderer(timeout_s=0.5)
    loops = "{% for m in messages %}" * 3 + "{% endfor %}" * 3
    template = ChatTemplate(source=loops + "{{ messages[0]['content'] }}")

    def ask(owner, messages):
        before = request_owner.set(owner)
        try:
            return asyncio.run(renderer.render(template, messages)).prompt
        finally:
            request_owner.reset(before)

    try:
        for _ in range(2):
            with pytest.raises(BadTemplate, match="ran longer"):
                ask("many", HELLO * 2000)
        with pytest.raises(BadTemplate, match="paused"):
            ask("many", HELLO * 2000)
        assert ask("many", HELLO) == "hello"
        assert ask("one", HELLO) == "hello"
        with pytest.raises(BadTemplate, match="ran longer"):
            ask("one", HELLO * 2000)
    finally:
        renderer.close()


def test_thousands_of_messages_of_one_role_are_joined_in_time():
    """A template that wants roles to alternate gets them joined; the others wait for the child meanwhile."""
    began = time.process_time()
    (joined,) = merge_turns([Message(role="user", content="x" * 1000)] * 20_000)
    (results,) = spell_results([Message(role="tool", content="x" * 1000, tool_call_id="a")] * 20_000)
    assert time.process_time() - began < 3
    assert len(joined.content) == 20_000 * 1002 - 2
    assert results.content.count("<tool_response>") == 20_000


@pytest.mark.parametrize(
    ("closed", "opened", "added"),
    [
        ("ab", "abc", "c"),
        ("ab", "ac", "c"),
        ("x", "ab", "ab"),
        ("abc", "ab", ""),
        ("", "a", "a"),
        ("aXb", "aYb", "Yb"),
    ],
)
def test_the_head_of_an_answer_is_what_the_prompts_do_not_share(closed, opened, added):
    assert _added(closed, opened) == added
    assert _added("long" * 1000 + closed, "long" * 1000 + opened) == added


def test_a_killed_child_is_replaced(renderer):
    import psutil

    render(renderer, None)
    pid = renderer.child.pid
    psutil.Process(pid).kill()
    wait_for(lambda: not runs(pid), what="the child's end")
    assert render(renderer, None).prefill == "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ messages[5].content.x }}", "{% for %}", "{{ 1/0 }}", "{{ nope() }}"]
)
def test_broken_templates_are_named_and_offer_the_built_in_one(renderer, source):
    with pytest.raises(BadTemplate, match="built-in template"):
        render(renderer, source)


def test_a_refusal_is_quoted(renderer):
    with pytest.raises(BadTemplate, match="refuses this conversation: only on Sundays"):
        render(renderer, "{{ raise_exception('only on Sundays') }}")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_reserved_variables_are_refused(renderer, name):
    with pytest.raises(InputFault, match="may not set"):
        render(renderer, None, **{name: "x"})


def test_the_child_sees_no_secrets(renderer, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary-1234")
    renderer.child.close()
    render(renderer, None)
    import psutil

    assert "HF_TOKEN" not in psutil.Process(renderer.child.pid).environ()


def test_many_callers_share_one_child(renderer):
    async def all_at_once():
        return await asyncio.gather(*(renderer.render(ChatTemplate(), HELLO) for _ in range(50)))

    assert len({rendered.prompt for rendered in asyncio.run(all_at_once())}) == 1


def test_a_server_that_ends_does_not_wait_for_a_slow_template():
    renderer = TemplateRenderer(timeout_s=30.0)
    slow = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

    async def scenario():
        asking = asyncio.create_task(renderer.render(ChatTemplate(source=slow), HELLO, by_client=True))
        await asyncio.sleep(1)
        begun = time.monotonic()
        await asyncio.to_thread(renderer.close)
        took = time.monotonic() - begun
        await asyncio.gather(asking, return_exceptions=True)
        return took

    assert asyncio.run(scenario()) < 20
