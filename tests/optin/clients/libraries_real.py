"""Libraries as people use them, against a server with a real model. Usage: libraries_real.py URL MODEL NAME."""

import asyncio
import sys
from typing import Any

URL, MODEL, WHICH = sys.argv[1:4]
V1 = f"{URL}/v1"
ASK = "What is the capital of France? Answer in one sentence."
PERSON = "Ada is 36 years old. Return name and age."


def expect(text, *, word="Paris"):
    """The answer is the model's, not a default."""
    assert word.lower() in str(text).lower(), text


def litellm():
    import litellm as library

    ask = [{"role": "user", "content": ASK}]
    for model, base in (
        (f"openai/{MODEL}", V1),
        (f"hosted_vllm/{MODEL}", V1),
        (f"lm_studio/{MODEL}", V1),
        (f"ollama_chat/{MODEL}", URL),
        (f"anthropic/{MODEL}", URL),
    ):
        options = {"model": model, "api_base": base, "api_key": "unused", "messages": ask, "temperature": 0}
        expect(library.completion(**options, max_tokens=40).choices[0].message.content)
    streamed = {"model": f"openai/{MODEL}", "api_base": V1, "api_key": "x", "max_tokens": 40}
    parts = library.completion(**streamed, messages=ask, stream=True)
    expect("".join(part.choices[0].delta.content or "" for part in parts), word="")
    vectors = library.embedding(model=f"openai/{MODEL}", api_base=V1, api_key="x", input=["Hello"])
    assert len(vectors.data[0]["embedding"]) > 100


def langchain():
    from langchain_anthropic import ChatAnthropic
    from langchain_ollama import ChatOllama, OllamaEmbeddings
    from langchain_openai import ChatOpenAI, OpenAI
    from pydantic import BaseModel

    class Person(BaseModel):
        """A user."""

        name: str
        age: int

    chat = ChatOpenAI(model=MODEL, base_url=V1, api_key="unused", temperature=0, max_tokens=60)
    expect(chat.invoke(ASK).content)
    expect("".join(part.content for part in chat.stream(ASK)))
    assert isinstance(chat.with_structured_output(Person).invoke(PERSON), Person)
    responses = ChatOpenAI(
        model=MODEL, base_url=V1, api_key="x", use_responses_api=True, max_tokens=60, temperature=0
    )
    expect(responses.invoke(ASK).text)
    assert OpenAI(model=MODEL, base_url=V1, api_key="x", max_tokens=8).invoke("Once upon a time")
    expect(ChatAnthropic(model=MODEL, base_url=URL, api_key="unused", max_tokens=60).invoke(ASK).content, word="")
    ollama = ChatOllama(model=MODEL, base_url=URL, temperature=0, num_predict=60)
    expect(ollama.invoke(ASK).content)
    assert isinstance(ollama.with_structured_output(Person).invoke(PERSON), Person)
    long = "word " * 9000  # longer than the context: Ollama truncates it, and so does this server
    assert len(OllamaEmbeddings(model=MODEL, base_url=URL).embed_query(long)) > 100


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.ollama import Ollama
    from llama_index.llms.openai_like import OpenAILike

    options = {"model": MODEL, "api_base": V1, "api_key": "unused", "temperature": 0, "max_tokens": 60}
    chat = OpenAILike(**options, is_chat_model=True)
    expect(chat.chat([ChatMessage(role="user", content=ASK)]).message.content)
    expect("".join(part.delta or "" for part in chat.stream_complete(ASK)))
    assert OpenAILike(**options).complete("Once upon a time").text
    ollama = Ollama(model=MODEL, base_url=URL, request_timeout=120, temperature=0, context_window=2048)
    expect(ollama.complete(ASK).text)
    found = OpenAILikeEmbedding(model_name=MODEL, api_base=V1, api_key="unused").get_text_embedding("Hello")
    assert len(found) > 100


def instructor():
    import instructor as library
    import openai
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    class Loose(BaseModel, extra="allow"):
        """JSON mode guarantees an object, not its fields, and a model this small may answer with the schema."""

        name: Any = None
        age: Any = None

    client = openai.OpenAI(base_url=V1, api_key="unused")
    for mode, kind in (
        (library.Mode.TOOLS, Person),
        (library.Mode.JSON_SCHEMA, Person),
        (library.Mode.JSON, Loose),
    ):
        asking = library.from_openai(client, mode=mode).chat.completions
        options = {"model": MODEL, "temperature": 0, "max_tokens": 120, "max_retries": 0}
        made = asking.create(response_model=kind, messages=[{"role": "user", "content": PERSON}], **options)
        assert made.model_dump(exclude_unset=True)


def pydantic_ai():
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Person(BaseModel):
        name: str
        age: int

    openai = OpenAIProvider(base_url=V1, api_key="unused")
    settings = {"temperature": 0, "max_tokens": 100}
    chat = OpenAIChatModel(MODEL, provider=openai)
    expect(Agent(chat, model_settings=settings).run_sync(ASK).output)
    typed = Agent(chat, output_type=NativeOutput(Person), model_settings=settings)
    assert isinstance(typed.run_sync(PERSON).output, Person)
    expect(Agent(OpenAIResponsesModel(MODEL, provider=openai), model_settings=settings).run_sync(ASK).output)


def smolagents():
    from smolagents import OpenAIServerModel

    model = OpenAIServerModel(MODEL, api_base=V1, api_key="unused", temperature=0, max_tokens=60)
    expect(model([{"role": "user", "content": [{"type": "text", "text": ASK}]}]).content)
    parts = model.generate_stream([{"role": "user", "content": [{"type": "text", "text": ASK}]}])
    expect("".join(part.content or "" for part in parts))


def openai_agents():
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=V1, api_key="unused")
    settings = ModelSettings(temperature=0, max_tokens=100)

    async def run():
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            model = kind(model=MODEL, openai_client=client)
            agent = Agent(name="a", instructions="Answer briefly.", model=model, model_settings=settings)
            expect((await Runner.run(agent, ASK)).final_output)
            typed = Agent(name="b", model=model, output_type=Person, model_settings=settings)
            assert isinstance((await Runner.run(typed, PERSON)).final_output, Person)
            streamed = Runner.run_streamed(agent, ASK)
            events = [event async for event in streamed.stream_events()]
            assert len(events) > 3
            expect(streamed.final_output)

    asyncio.run(run())


globals()[WHICH]()
print(f">{WHICH}")
