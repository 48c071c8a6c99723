"""Compares Tessera's prompts with llama-server's, for every template in tests/data/templates.

    python tests/optin/template_oracle.py LLAMA_SERVER [NAME ...]

Starts llama-server on the bundled model once per template and compares POST /apply-template with Tessera's
rendering, for a plain conversation and for one with tools, a call and its result. Prints the first difference.
Results: log-archive.md, chat.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.chat.render_child import Renderer
from engine.chat.render_protocol import RenderJob
from engine.chat.types import ChatTemplate, Message, ToolCall, ToolDefinition

TEMPLATES = ROOT / "tests" / "data" / "templates"
MODEL = ROOT / "assets" / "models" / "spark-f16.gguf"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "City"},
        "days": {"type": "integer", "description": "Days"},
    },
    "required": ["city"],
}
TOOL = ToolDefinition(name="get_weather", description="The weather", parameters=PARAMETERS)
ID = "abcdefgh1"
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye"},
]
CALL = {
    "id": ID,
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Rome", "days": 2}'},
}
TOOLED = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": ID, "name": "get_weather", "content": "sunny"},
]


def messages(bodies):
    out = []
    for body in bodies:
        calls = tuple(
            ToolCall(id=c["id"], name=c["function"]["name"], arguments=c["function"]["arguments"])
            for c in body.get("tool_calls", ())
        )
        extra = {k: body[k] for k in ("tool_call_id", "name") if k in body}
        out.append(Message(role=body["role"], content=body["content"], tool_calls=calls, **extra))
    return tuple(out)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def theirs(server, template):
    port = free_port()
    command = [
        server, "-m", str(MODEL), "--port", str(port), "--jinja", "--chat-template-file", str(template),
        "-c", "256", "-t", "1", "--no-warmup", "-np", "1",
    ]  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(server).parent)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(200):
            if process.poll() is not None:
                return ["(server ended)", "(server ended)"]
            try:
                if httpx2.get(f"{base}/health").status_code == 200:
                    break
            except httpx2.HTTPError:
                pass
            time.sleep(0.1)
        tools = [
            {
                "type": "function",
                "function": {"name": TOOL.name, "description": TOOL.description, "parameters": PARAMETERS},
            }
        ]
        bodies = [{"messages": PLAIN}, {"messages": TOOLED, "tools": tools}]
        answers = [httpx2.post(f"{base}/apply-template", json=body, timeout=30).json() for body in bodies]
        return [answer.get("prompt", f"(error) {json.dumps(answer)[:200]}") for answer in answers]
    finally:
        process.kill()
        process.wait()


def ours(renderer, source):
    found = []
    for bodies, tools in ((PLAIN, ()), (TOOLED, (TOOL,))):
        template = ChatTemplate(source=source, bos="<|endoftext|>", eos="<|im_end|>")
        try:
            rendered = renderer.render(RenderJob(template=template, messages=messages(bodies), tools=tools))
        except Exception as error:
            found.append((f"(error) {error}", ()))
        else:
            found.append((rendered.prompt, rendered.repairs))
    return found


def difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"at {at}: ours {a[max(0, at - 40) : at + 80]!r} theirs {b[max(0, at - 40) : at + 80]!r}"


def main():
    server, *names = sys.argv[1:]
    renderer = Renderer()
    same = total = 0
    for path in sorted(TEMPLATES.glob("*.jinja")):
        if names and path.stem not in names:
            continue
        results = zip(
            ("plain", "tools"), ours(renderer, path.read_text("utf-8")), theirs(server, path), strict=True
        )
        for label, (mine, repairs), other in results:
            total += 1
            if mine == other:
                same += 1
            else:
                print(f"{path.stem} {label}: {difference(mine, other)} {repairs or ''}", flush=True)
    print(f"{same} of {total} prompts are the same")


if __name__ == "__main__":
    main()
