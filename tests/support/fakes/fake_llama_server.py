"""A fake of llama-server: its help, its devices, and responses with recorded shapes.

LLAMA_FAKE selects a failure or variant: `dies` (at start), `crash` (at a message with the word crash), `chip` (a
fork with a device of its own), `old` (a build without newer options). The start arguments are written to the file
named by LLAMA_FAKE_TOLD.
"""

import json
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.fakes import fake_upstream

MODE = os.environ.get("LLAMA_FAKE", "")
HELP = """
-m,    --model FNAME                    model path to load
-a,    --alias STRING                   set alias for model name
--host HOST                             ip address to listen
--port PORT                             port to listen
-c,    --ctx-size N                     size of the prompt context
-np,   --parallel N                     number of parallel sequences to decode
-t,    --threads N                      number of CPU threads
-ngl,  --gpu-layers, --n-gpu-layers N   number of layers to store in VRAM
"""
NEWER = """
-kvu,  --kv-unified                     use single unified KV buffer
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-dev,  --device <dev1,dev2,..>          comma-separated list of devices
--list-devices                          print list of available devices and exit
-fit,  --fit [on|off]                   whether to adjust unset arguments
--jinja                                 use jinja template for chat
"""


def main():
    if "--help" in sys.argv:
        print(HELP + ("" if MODE == "old" else NEWER))
    elif "--version" in sys.argv:
        print("version: 7777 (abcdef0)\nbuilt with cc for a test")
    elif "--list-devices" in sys.argv:
        print(
            "Available devices:\n"
            + ("  CHIP0: Some accelerator (8192 MiB, 8000 MiB free)" if MODE == "chip" else "")
        )
    else:
        serve()


def serve():
    told = {
        "arguments": sys.argv[1:],
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("LLAMA_", "HF_"))},
        "pid": os.getpid(),
    }
    Path(os.environ["LLAMA_FAKE_TOLD"]).write_text(json.dumps(told))
    if MODE == "dies":
        print("error: failed to load model, unknown architecture 'brand-new'", flush=True)
        sys.exit(1)

    def option(name):
        return sys.argv[sys.argv.index(name) + 1]

    fake_upstream.MODEL = option("--alias")
    fake_upstream.LISTS["llama-server"] = {"id": option("--alias"), "owned_by": "llamacpp"}
    address = (option("--host"), int(option("--port")))
    served = fake_upstream.FakeUpstream("llama-server", os.environ["LLAMA_API_KEY"], listen=address)
    answer = served.answer

    def watched(request, body):
        if MODE == "crash" and "crash" in json.dumps(body):
            print("ggml_chip: error: the chip does not answer", flush=True)
            os._exit(7)
        if request.path == "/apply-template":
            served.json(request, {"prompt": " ".join(m["content"] for m in body["messages"])})
        elif request.path == "/tokenize":
            served.json(request, {"tokens": list(range(len(body["content"].split())))})
        else:
            answer(request, body)

    served.answer = watched
    threading.Event().wait()


if __name__ == "__main__":
    main()
