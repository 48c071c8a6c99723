"""Runs the commands of `tessera cluster` between two network namespaces, which Ray takes for two computers.

    python tests/optin/cluster_verbs.py

Needs root, Linux and `tessera[cluster]`. Each namespace has its own home. Starts a cluster in one, joins the other
with the token, deploys the bundled model on both, queries it through the first one's server, quantizes with and
without `--cluster`, and stops everything. Prints one line per step, and exits with 1 if one fails.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.optin.two_hosts import HERE, HERE_IP, THERE, Report, enter, namespaces
from tests.support.servers import RunningServer, wait_for

MODEL = ROOT / "assets" / "models" / "spark-f16.gguf"
PATIENCE_S = 300
MEMORY = "2GiB"


class Command:
    """One `tessera` command, in a namespace and a home; its words are collected as they come."""

    def __init__(self, place, home, *arguments, told=""):
        self.words = ""
        command = ["nsenter", f"--net=/run/netns/{place}", sys.executable, "-m", "app", *arguments]
        env = {**os.environ, "TESSERA_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if told:
            self.process.stdin.write(told + "\n")
        self.process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.words += line

    def says(self, words):
        wait_for(lambda: words in self.words or self.process.poll() is not None, PATIENCE_S, words)
        assert words in self.words, self.words
        return self.words

    def ends(self, code=0):
        self.process.wait(PATIENCE_S)
        self._reader.join(5)
        assert self.process.returncode == code, (self.process.returncode, self.words)
        return self.words

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(40)
        if self.process.poll() is None:
            self.process.kill()


def verbs(homes, report, stack):
    here = lambda *arguments: Command(HERE, homes[0], *arguments)
    server = RunningServer(homes[0])
    stack.callback(server.stop)
    began = time.monotonic()
    up = here("cluster", "up", "--host", HERE_IP, "--memory", MEMORY)
    stack.callback(up.stop)
    told = up.says("Ends with Ctrl+C")
    token = re.search(r"token once: (\w+)", told)[1]
    report.line(True, f"up: {time.monotonic() - began:.0f} s")
    wrong = Command(THERE, homes[1], "cluster", "join", f"{HERE_IP}:6379", "--memory", MEMORY, told="0" * 64)
    stack.callback(wrong.stop)
    wrong.process.wait(PATIENCE_S)
    report.line(wrong.process.returncode == 1, f"join with a wrong token ends with {wrong.process.returncode}")
    joined = Command(THERE, homes[1], "cluster", "join", f"{HERE_IP}:6379", "--memory", MEMORY, told=token)
    stack.callback(joined.stop)
    told = ""
    until = time.monotonic() + PATIENCE_S
    while told.count("2.1 GB") < 4:
        assert joined.process.poll() is None, joined.words
        assert time.monotonic() < until, told
        told = here("cluster", "status").ends()
    report.line("10.77.0.2" in told, "join: status shows both nodes and their memory")
    here("cluster", "deploy", "spark", "--least", "2", "--most", "2").ends()
    wait_for(lambda: "2 running" in here("cluster", "status").ends(), PATIENCE_S, "a replica on each")
    report.line(True, "deploy: a replica on each")
    http = stack.enter_context(
        httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=PATIENCE_S)
    )
    said = set()
    for model in ("spark", "cluster/spark", "cluster/spark", "cluster/spark"):
        body = {"model": model, "prompt": "Rain is", "max_tokens": 12, "temperature": 0}
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == httpx2.codes.OK, answer.text
        said.add(answer.json()["choices"][0]["text"])
    report.line(len(said) == 1, f"the cluster says what this computer says: {said}")
    here("cluster", "down", "spark").ends()
    wait_for(lambda: "spark" not in here("cluster", "status").ends(), PATIENCE_S, "the model's end")
    report.line(True, "down MODEL: gone from status")
    made = []
    for more in ((), ("--cluster",)):
        out = homes[0] / f"made{len(more)}.gguf"
        here("quantize", str(MODEL), str(out), "--type", "Q4_K_M", "--no-verify", *more).ends()
        made.append(out.read_bytes())
    report.line(made[0] == made[1], f"quantize --cluster: {len(made[0])} bytes, the same as without")
    here("cluster", "down").ends()
    up.process.wait(PATIENCE_S)
    joined.process.wait(PATIENCE_S)
    report.line(True, f"down: up ended with {up.process.returncode}, join with {joined.process.returncode}")
    late = here("cluster", "status")
    late.process.wait(PATIENCE_S)
    report.line("belongs to no cluster" in late.words, "status afterwards says that there is none")


def main():
    report = Report()
    with tempfile.TemporaryDirectory() as folder, namespaces(), contextlib.ExitStack() as stack:
        homes = [Path(folder, name) for name in (HERE, THERE)]
        for home in homes:
            home.mkdir()
        enter(HERE)
        verbs(homes, report, stack)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
