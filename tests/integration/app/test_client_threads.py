"""Threads of one process that concurrently decode the same response type for the first time."""

import subprocess
import sys

SCRIPT = """
import sys, threading
from app.client.chat_client import _decoded
from engine.api.machine import PlacementAnswer
sys.setswitchinterval(1e-7)
raw = b'{"placement": {"device": "cpu", "backend": "cpu", "reason_details": [{"kind": "quiet"}]}}'
go = threading.Barrier(3)
def ask():
    go.wait()
    _decoded(raw, PlacementAnswer, "/")
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_class_is_learnt_by_one_thread():
    # msgspec 0.22 crashed in every other such process.
    ends = [subprocess.run([sys.executable, "-c", SCRIPT], timeout=60).returncode for _ in range(6)]
    assert ends == [0] * 6
