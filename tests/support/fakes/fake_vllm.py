"""A fake of `vllm serve`: arguments, environment, a key, and responses with recorded shapes.

VLLM_FAKE selects a failure: `dies` (at start, as without a GPU), `slow` (responds late), `crash` (at a message with
the word crash). The start arguments are written to the file named by VLLM_FAKE_TOLD.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.fakes import fake_upstream

MODE = os.environ.get("VLLM_FAKE", "")
# The engine is a separate process: it holds the weights and outlives its server for a while.
ENGINE = "x = bytearray(b'1' * (64 << 20)); print(flush=True)\nwhile True: __import__('time').sleep(1)"


def main():
    assert sys.argv[1] == "serve"
    options = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE)
    told = {
        "folder": sys.argv[2],
        "options": options,
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "CUDA_", "HF_"))},
        "pids": [os.getpid(), engine.pid],
    }
    Path(os.environ["VLLM_FAKE_TOLD"]).write_text(json.dumps(told))
    if MODE == "dies":
        print("RuntimeError: Failed to infer device type", flush=True)
        sys.exit(1)
    if MODE == "slow":
        time.sleep(3)
    engine.stdout.readline()  # it responds after its engine holds the model
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    name = fake_upstream.MODEL = options["--served-model-name"]
    fake_upstream.LISTS["vllm"] |= {"id": name, "root": name, "max_model_len": int(options["--max-model-len"])}
    address = (options["--host"], int(options["--port"]))
    served = fake_upstream.FakeUpstream("vllm", os.environ["VLLM_API_KEY"], listen=address)
    answer = served.answer

    def watched(request, body):
        if MODE == "crash" and "crash" in json.dumps(body):
            print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(7)
        answer(request, body)

    served.answer = watched
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
