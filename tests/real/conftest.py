"""The real model, served once for all tests of this folder."""

import httpx2
import pytest

from tests.support.servers import RunningServer

NAME = "smollm2-135m-instruct"


class Chat:
    """A server with the real model and the bundled one."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.http = httpx2.Client(base_url=running.url, timeout=600, trust_env=False)

    def ask(self, text, model=NAME, **options):
        """One complete answer."""
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 40, **options}
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, *args, **options):
        """Its text."""
        return self.ask(*args, **options)["choices"][0]["message"]["content"]


@pytest.fixture(scope="session")
def real_server(real_model, tmp_path_factory):
    home = tmp_path_factory.mktemp("real-home")
    (home / "models").mkdir()
    (home / "models" / f"{NAME}.gguf").symlink_to(real_model)
    running = RunningServer(home)
    chat = Chat(running)
    yield chat
    chat.http.close()
    running.stop()
