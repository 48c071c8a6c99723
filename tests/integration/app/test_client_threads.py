"""Threads of one process that concurrently decode the same response type for the first time."""

import subprocess
import sys

SCRIPT = """
import sys, threading
from app.client.chat_client import _decoded
from engine.api.machine import PlacementAnswer
sys.setswitchinterval(1e-7)
need = b'{"n_ctx": 1, "kv_cells": 1, "n_sequences": 1, "type_k": "", "type_v": "", "n_gpu_layers": 0, "parts": []}'
raw = (
    b'{"placement": {"device": "cpu", "device_name": "", "backend": "cpu", "n_layers": 1, "settings": {"path": ""},'
    b' "fits": true, "reason_details": [{"kind": "quiet"}], "need": ' + need + b"}}"
)
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
