"""Plugin for Lemonade's own tests: they run against a running Tessera server with one model.

Loaded by run.py with `-p`, from the folder of those tests. `/api/v1` is Tessera's `/v1`; its models count as
pulled and loaded.
"""

import os
from typing import Any
from urllib.parse import urlsplit

import openai
import requests

URL, MODEL = os.environ["CONFORMANCE_SERVER"].split(" ")
os.environ["LEMONADE_TEST_PORT"] = str(urlsplit(URL).port)

from utils import capabilities, server_base, test_models

for name in ("ENDPOINT_TEST_MODEL", "TOOL_CALLING_MODEL", "VISION_MODEL", "MULTI_MODEL_SECONDARY"):
    setattr(test_models, name, MODEL)
capabilities.set_current_config("llamacpp", "cpu", "llm")
server_base.ServerTestBase.setUpClass = classmethod(lambda _: None)
server_base.get_test_model = capabilities.get_test_model = lambda *_, **__: MODEL
_sent = requests.Session.request


def _request(self: Any, method: str, url: str, *rest: Any, **options: Any) -> Any:
    if method.upper() == "POST" and url.endswith(("/api/v1/pull", "/api/v1/load", "/api/v1/unload")):
        done = requests.Response()
        done.status_code, done._content, done.encoding = 200, b'{"status": "success"}', "utf-8"
        return done
    return _sent(self, method, url.replace("/api/v1/", "/v1/"), *rest, **options)


requests.Session.request = _request  # type: ignore[method-assign]
for kind in (openai.OpenAI, openai.AsyncOpenAI):

    def _made(self: Any, *rest: Any, _first: Any = kind.__init__, **options: Any) -> None:
        _first(self, *rest, **{**options, "base_url": f"{URL}/v1"})

    kind.__init__ = _made  # type: ignore[method-assign]
