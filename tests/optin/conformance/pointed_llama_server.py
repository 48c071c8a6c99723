"""Plugin for llama-server's own tests: they run against a running Tessera server, and requests name its model.

Loaded by run.py with `-p`, from the folder of those tests.
"""

import os
from typing import Any
from urllib.parse import urlsplit

import openai
import utils

URL, MODEL = os.environ["CONFORMANCE_SERVER"].split(" ")


def _start(self: Any, *_: Any, **__: Any) -> None:
    where = urlsplit(URL)
    self.server_host, self.server_port, self.process = where.hostname, where.port, None
    utils.server_instances.add(self)


def _stop(self: Any) -> None:
    utils.server_instances.discard(self)


def _named(call: Any) -> Any:
    def with_model(self: Any, method: str, path: str, data: Any = None, *rest: Any, **options: Any) -> Any:
        if method == "POST" and isinstance(data, dict):
            data = {**data, "model": MODEL}
        return call(self, method, path, data, *rest, **options)

    return with_model


utils.ServerProcess.start = _start
utils.ServerProcess.stop = _stop
utils.ServerPreset.load_all = staticmethod(lambda: None)
for name in ("make_request", "make_stream_request", "make_any_request"):
    setattr(utils.ServerProcess, name, _named(getattr(utils.ServerProcess, name)))
_posted = openai.OpenAI.post


def _post(self: Any, path: str, **options: Any) -> Any:
    return _posted(self, path, **{**options, "body": {**(options.get("body") or {}), "model": MODEL}})


openai.OpenAI.post = _post  # type: ignore[method-assign]
