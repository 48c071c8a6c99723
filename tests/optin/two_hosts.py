"""Runs one model on two computers: network namespaces joined by a veth pair, each with its own memory limit.

    python tests/optin/two_hosts.py [--model GGUF] [--only small|large|speed] [--tokens 96] [--links 2]

Needs root and Linux. The worker and an SSH server run in one namespace, this program and the other computer's
server in the other. A relay next to the SSH server shapes the link, because kernels of containers lack netem.
Checks that a model gives the same answer over both as alone, at 1 Gbit/0.3 ms and at 200 Mbit/4 ms; that only SSH
and the relay are reachable on the worker; and that a model too large for either memory limit runs on both, with
memory and speed as predicted. Prints one line per check, and exits with 1 if one fails.
"""

import argparse
import contextlib
import ctypes
import json
import os
import queue
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.fakes.ssh_hosts import SshHost, Worker
from tests.support.models.shapes import scaled, write_shape
from tests.support.servers import RunningServer

HERE, THERE = "tessera-a", "tessera-b"
HERE_IP, THERE_IP = "10.77.0.1", "10.77.0.2"
CGROUPS = Path("/sys/fs/cgroup/memory")
# bytes a second and the delay of one direction; half of what there and back takes.
LINKS = {"1 Gbit, .3 ms": (125e6, 0.00015), "200 Mbit, 4 ms": (25e6, 0.002)}
LIMIT_HERE, LIMIT_THERE = 1100 << 20, 900 << 20
CLONE_NEWNET = 0x40000000
PROMPT = "Rain, and what it does to a city. " * 80  # more than one ubatch of 512 tokens
PATIENCE_S = 900


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def ended_in_order():
    """SIGTERM ends what is inside as Ctrl-C does: what was set up is taken down, once."""

    def end(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def remove(name):
    """A namespace; one that a killed run left is made of nothing but its name."""
    subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


@contextlib.contextmanager
def namespaces():
    """Two of them, each with loopback, joined by one cable; SIGTERM takes them away too."""
    with ended_in_order(), _namespaces():
        yield


@contextlib.contextmanager
def _namespaces():
    for name in (HERE, THERE):
        if not subprocess.run(("ip", "netns", "pids", name), check=False, capture_output=True).stdout.strip():
            remove(name)
    try:
        for name in (HERE, THERE):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "link", "add", "veth-a", "netns", HERE, "type", "veth", "peer", "name", "veth-b", "netns", THERE)
        for name, link, address in ((HERE, "veth-a", HERE_IP), (THERE, "veth-b", THERE_IP)):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", link)
            run("ip", "-n", name, "link", "set", link, "up")
        yield
    finally:
        for name in (HERE, THERE):
            remove(name)


def enter(name):
    """Put this thread, and what it starts from now on, into a namespace."""
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def limited(name, num_bytes):
    """Processes started inside may hold so much memory, files' pages that can be dropped aside."""
    folder = CGROUPS / name
    folder.mkdir(exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(str(num_bytes))
    own = next(x.split(":")[2] for x in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in x)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        back = CGROUPS / own.lstrip("/")
        (back if back.exists() else CGROUPS).joinpath("cgroup.procs").write_text(str(os.getpid()))


class Cable:
    """A relay of threads: asyncio's clock of whole milliseconds is too coarse for a cable."""

    def __init__(self, listen, target):
        self.target, self.bytes_s, self.delay_s = target, 1e9, 0.0
        self._server = socket.create_server(listen)
        threading.Thread(target=self._join, daemon=True).start()

    def _join(self):
        while True:
            near, _ = self._server.accept()
            far = socket.create_connection(self.target)
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting = queue.Queue()
                threading.Thread(target=self._read, args=(one, waiting), daemon=True).start()
                threading.Thread(target=self._write, args=(other, waiting), daemon=True).start()

    def _read(self, source, waiting):
        free_at = 0.0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                now = time.monotonic()
                free_at = max(free_at, now) + len(data) / self.bytes_s
                waiting.put((free_at + self.delay_s, data))
                if free_at - now > 0.02:
                    time.sleep(free_at - now - 0.02)
        waiting.put((0.0, b""))

    def _write(self, sink, waiting):
        with contextlib.suppress(OSError):
            while (item := waiting.get())[1]:
                if (left := item[0] - time.monotonic()) > 0:
                    time.sleep(left)
                sink.sendall(item[1])
            sink.shutdown(socket.SHUT_WR)


def other_computer(home):
    """SSH, the cable's far end and a worker; orders come as lines of JSON."""
    with ended_in_order(), contextlib.ExitStack() as stack:
        host = SshHost(home, address=THERE_IP)
        stack.callback(host.stop)
        cable = Cable((THERE_IP, 0), (THERE_IP, host.port))
        with limited("tessera-b", LIMIT_THERE):
            worker = Worker(home)
        stack.callback(worker.stop)
        obey(host, cable, worker)


def obey(host, cable, worker):
    """Tell where they are, then take orders until nobody gives any."""
    facts = {"ssh": host.port, "cable": cable._server.getsockname()[1], "worker": worker.port,
             "identity": str(host.identity), "host_key": host.fingerprint}  # fmt: skip
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "link" in order:
            cable.bytes_s, cable.delay_s = order["link"]
        listening = [c.laddr for p in (psutil.Process(worker.process.pid), *worker.sessions())
                     for c in p.net_connections("inet") if c.status == "LISTEN"]  # fmt: skip
        rss = [p.memory_info().rss for p in worker.sessions()]
        print(json.dumps({"rss": rss, "listening": sorted({a.ip for a in listening})}), flush=True)


class Far:
    """The other computer, as this program talks with it."""

    def __init__(self, home):
        nsenter = ("nsenter", f"--net=/run/netns/{THERE}", sys.executable, __file__, "--other", str(home))
        self.process = subprocess.Popen(nsenter, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.told = json.loads(self.process.stdout.readline())

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(30)


def add(http, told, use="unfit"):
    body = {"host": THERE_IP, "user": "me", "port": told["cable"], "worker_port": told["worker"], "use": use,
            "identity": told["identity"], "host_key": told["host_key"]}  # fmt: skip
    http.put("/tessera/v1/remotes/desk", json=body).raise_for_status()
    row = http.post("/tessera/v1/remotes/desk/check").json()
    assert row["state"] == "ok", row
    return row


def ask(http, model, tokens, prompt="Rain is"):
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "loop_guard": False}  # fmt: skip
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == httpx2.codes.OK, answer.text
    return answer.json()["choices"][0]["text"]


def tokens_a_second(http, model, tokens):
    """As whoever waits for them sees it, from the first to the last."""
    body = {"model": model, "prompt": "Rain is", "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "loop_guard": False, "stream": True}  # fmt: skip
    with http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        at = [time.monotonic() for line in lines if line.startswith("data: {") and '"text"' in line]
    return (tokens - 1) / (at[-1] - at[0])


def open_ports(address):
    """Every TCP port there that answers."""

    def answers(port):
        with socket.socket() as probe:
            probe.settimeout(2)
            return port if probe.connect_ex((address, port)) == 0 else None

    with ThreadPoolExecutor(64) as pool:
        return [port for port in pool.map(answers, range(1, 65536)) if port]


class Report:
    def __init__(self):
        self.failed = 0

    def line(self, holds, words):
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {words}", flush=True)


def same_text(http, far, report, options):
    """A model that fits here says over both what it says alone."""
    name = "small"
    alone = ask(http, name, options.tokens)
    for words, link in list(LINKS.items())[: options.links]:
        far.ask(link=link)
        row = add(http, far.told)
        http.post(f"/tessera/v1/models/{name}/unload")
        http.post(f"/tessera/v1/models/{name}/pin", json={"device": "desk"}).raise_for_status()
        over_both = ask(http, name, options.tokens)
        loaded = {m["id"]: m for m in http.get("/tessera/v1/loaded").json()["models"]}
        report.line(
            over_both == alone and loaded[name]["backend"] != "cpu",
            f"{words}: same text over both ({options.tokens} tokens); the way as measured {row['rtt_ms']:.2f} ms, "
            f"{row['up_bytes_s'] / 1e6:.0f} MB/s there, {row['down_bytes_s'] / 1e6:.0f} MB/s back",
        )
    listening = far.ask()["listening"]
    report.line(listening == ["127.0.0.1"], f"worker and session listen on {', '.join(listening)}")
    found = open_ports(THERE_IP)
    report.line(
        set(found) == {far.told["ssh"], far.told["cable"]},
        f"open of 65,535 ports over there: {len(found)}, those of SSH and of the relay",
    )
    http.post(f"/tessera/v1/models/{name}/pin", json={"device": None})
    http.post(f"/tessera/v1/models/{name}/unload")


def too_large(http, far, report, server, options):
    """A model that fits into neither memory limit; memory and speed as predicted."""
    http.delete("/tessera/v1/remotes/desk")
    refused = http.post("/v1/completions", json={"model": "large", "prompt": "Rain", "max_tokens": 1})
    report.line(refused.status_code >= 400, f"large does not fit here alone: {refused.text[:160]}")
    for words, link in list(LINKS.items())[: options.links]:
        far.ask(link=link)
        add(http, far.told)
        if options.only == "speed":
            first = tokens_a_second(http, "large", options.tokens)
            speed(http, report, words, options, f"its first answer {first:.2f}")
            continue
        ask(http, "large", 2, PROMPT)  # touches every buffer
        held = {"here": server.runners()[0].memory_info().rss, "there": far.ask()["rss"][0]}
        (taken,) = [r for r in http.get("/tessera/v1/ledger").json()["reservations"] if r["owner"] == "large"]
        told = http.get("/tessera/v1/models/large/placement").json()["loaded"]
        needs = {"here": 0, "there": 0}
        for part in told["need"]["parts"]:
            needs["there" if part["device"].startswith("remote:") else "here"] += part["num_bytes"]
        print("    ", told["reasons"], json.dumps(taken))
        print("    ", json.dumps(told["need"]["parts"]))
        for side, predicted in needs.items():
            off = predicted / held[side] - 1
            report.line(
                abs(off) <= 0.05,
                f"{words}: {side} {predicted / 1e6:.1f} MB predicted, {held[side] / 1e6:.1f} held, {off:+.1%}",
            )
        prior = told["decode_tok_s"]
        first = tokens_a_second(http, "large", options.tokens)  # teaches how fast both are
        speed(http, report, words, options, f"before its first answer {prior} and {first:.2f}")
        http.post("/tessera/v1/models/large/unload")


def speed(http, report, words, options, before):
    """Each answer against what those before it made the plan expect; one ratio is the machine's mood."""
    ratios, told = [], []
    for _ in range(options.rounds):
        http.post("/tessera/v1/models/large/unload")  # what is loaded is no free memory, and the plan another one
        planned = http.get("/tessera/v1/models/large/placement").json()["placement"]
        ask(http, "large", 2)
        loaded = http.get("/tessera/v1/models/large/placement").json()["loaded"]
        assert loaded["reasons"][1] == planned["reasons"][1], (loaded["reasons"], planned["reasons"])
        got = tokens_a_second(http, "large", options.tokens)
        ratios.append(planned["decode_tok_s"] / got)
        told.append(f"{planned['decode_tok_s']} for {got:.2f}")
        print("    ", planned["reasons"][1], f"and {got:.2f} measured", flush=True)
    off = statistics.median(ratios) - 1
    report.line(
        abs(off) <= 0.2, f"{words}: tok/s predicted for measured: {', '.join(told)}; median {off:+.0%}; {before}"
    )


def main():
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("--other", type=Path)
    read.add_argument("--model", type=Path, default=ROOT / "assets" / "models" / "spark-f16.gguf")
    read.add_argument("--only", choices=("small", "large", "speed"), help="speed: large without its memory")
    read.add_argument("--tokens", type=int, default=96, help="fewer than 64 teach no speed")
    read.add_argument("--rounds", type=int, default=5, help="answers that are predicted and measured")
    read.add_argument("--links", type=int, default=len(LINKS), help="how many of the links, the fastest first")
    options = read.parse_args()
    if options.other is not None:
        other_computer(options.other)
        return 0
    report = Report()
    with tempfile.TemporaryDirectory() as folder, namespaces(), contextlib.ExitStack() as stack:
        homes = [Path(folder, name) for name in (HERE, THERE)]
        for home in homes:
            home.mkdir()
        (homes[0] / "models").mkdir()
        (homes[0] / "models" / "small.gguf").symlink_to(options.model.resolve())
        if options.only != "small":
            shape = scaled("qwen3", tied=False, layers=12, embd=2048, heads=16, kv_heads=4, head_dim=128, ffn=6144,
                           vocab=16000, context=4096, qtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
            write_shape(homes[0] / "models" / "large.gguf", shape)
        far = Far(homes[1])
        stack.callback(far.stop)
        enter(HERE)
        with limited("tessera-a", LIMIT_HERE):
            server = RunningServer(homes[0])
        stack.callback(server.stop)
        http = stack.enter_context(
            httpx2.Client(
                base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=PATIENCE_S
            )
        )
        if options.only in (None, "small"):
            same_text(http, far, report, options)
        if options.only != "small":
            too_large(http, far, report, server, options)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
