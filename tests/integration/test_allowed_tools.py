"""`tool_choice: allowed_tools`, OpenAI's option to restrict the tools of one turn, in both protocols."""

import pytest

from tests.support.late import openai

ASK = [{"role": "user", "content": "Weather in Rome?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMES = ("get_weather", "get_time", "send_mail")
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def chat(client, mode, *names):
    """The calls' names and the text of a chat completion."""
    tools = [{"type": "function", "function": {"name": n, "description": n, "parameters": CITY}} for n in NAMES]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}
    message = (
        client.chat.completions.create(
            model="spark",
            messages=ASK,
            tools=tools,
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        )
        .choices[0]
        .message
    )
    return [call.function.name for call in message.tool_calls or ()], message.content


def respond(client, mode, *names):
    """The calls' names and the text of a response, whose `tool_choice` has the fields one level up."""
    tools = [{"type": "function", "name": n, "description": n, "parameters": CITY, "strict": False} for n in NAMES]
    allowed = [{"type": "function", "name": n} for n in names]
    answer = client.responses.create(
        model="spark",
        input=ASK,
        tools=tools,
        tool_choice={"type": "allowed_tools", "mode": mode, "tools": allowed},
    )
    return [item.name for item in answer.output if item.type == "function_call"], answer.output_text or None


both = pytest.mark.parametrize("ask", [chat, respond])


@both
def test_one_of_the_allowed_tools_must_be_called(qwen, client, ask):
    qwen.say(*CALL)
    assert ask(client, "required", "get_weather", "get_time") == (["get_weather"], None)
    grammar = qwen.asked()[-1]["constraint"]["source"]
    assert "get_weather" in grammar
    assert "get_time" in grammar
    assert "send_mail" not in grammar
    assert "send_mail" not in qwen.prompts()[-1]


@both
def test_one_of_the_allowed_tools_may_be_called(qwen, client, ask):
    qwen.say("It is sunny.")
    assert ask(client, "auto", "get_weather") == ([], "It is sunny.")
    assert qwen.asked()[-1].get("constraint") is None
    assert "get_weather" in qwen.prompts()[-1]
    assert "send_mail" not in qwen.prompts()[-1]
    qwen.say(*CALL)
    assert ask(client, "auto", "get_weather")[0] == ["get_weather"]


@both
@pytest.mark.parametrize(
    ("mode", "names", "why"),
    [
        ("required", ("get_news",), "'get_news', which is not in tools"),
        ("auto", (), "needs a mode and tools"),
        ("sometimes", ("get_time",), "needs a mode and tools"),
    ],
)
def test_what_cannot_be_meant_is_refused(client, ask, mode, names, why):
    with pytest.raises(openai.BadRequestError, match=why) as caught:
        ask(client, mode, *names)
    assert caught.value.param == "tool_choice"
