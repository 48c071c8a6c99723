"""Run a module of this program: `python devices/start_module.py MODULE [ARGUMENT ...]`.

`python -m MODULE` searches the current folder first. Tessera may be started in untrusted folders, whose own
`app.py` or `json.py` would then run.
"""

import os
import sys

# This program's own folder replaces the script's folder, whose `types` is not Python's module.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib comes later

import runpy

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
