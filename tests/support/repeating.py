"""The same request in every protocol that supports a seed, and the text of its response."""

from typing import Final

SEED: Final = 5
TOKENS: Final = 32


def _messages(text):
    return text if isinstance(text, list) else [{"role": "user", "content": text}]


def chat(text, seed=SEED, temperature=1.0):
    """OpenAI chat completions: path, body, and a function that reads the text."""
    body = {"messages": _messages(text), "max_tokens": TOKENS, "temperature": temperature}
    body |= {} if seed is None else {"seed": seed}
    return "/v1/chat/completions", body, lambda found: found["choices"][0]["message"]["content"]


def greedy(text):
    """Chat completions without a seed at temperature 0."""
    return chat(text, None, 0)


def completions(text):
    body = {"prompt": str(text), "max_tokens": TOKENS, "temperature": 1.0, "seed": SEED}
    return "/v1/completions", body, lambda found: found["choices"][0]["text"]


def responses(text):
    body = {"input": text, "max_output_tokens": TOKENS, "temperature": 0, "store": False}
    return "/v1/responses", body, lambda found: found["output"][-1]["content"][0]["text"]


def messages(text):
    body = {"messages": _messages(text), "max_tokens": TOKENS, "temperature": 0}
    return "/v1/messages", body, lambda found: found["content"][-1]["text"]


def ollama_chat(text):
    options = {"seed": SEED, "temperature": 1.0, "num_predict": TOKENS}
    body = {"messages": _messages(text), "stream": False, "options": options}
    return "/api/chat", body, lambda found: found["message"]["content"]


def ollama_generate(text):
    options = {"seed": SEED, "temperature": 1.0, "num_predict": TOKENS}
    body = {"prompt": str(text), "stream": False, "options": options}
    return "/api/generate", body, lambda found: found["response"]


def llama_server(text):
    body = {"prompt": str(text), "n_predict": TOKENS, "temperature": 1.0, "seed": SEED}
    return "/completion", body, lambda found: found["content"]


WAYS: Final = (chat, greedy, completions, responses, messages, ollama_chat, ollama_generate, llama_server)


def answer(http, model, way, text):
    """Send a request and return the response's text."""
    path, body, read = way(text)
    found = http.post(path, json={"model": model, **body})
    assert found.status_code == 200, found.text
    return read(found.json())
