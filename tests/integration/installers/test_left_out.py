"""The reason that excuses an advisory holds: a runner with llama.cpp does not import diskcache."""

import subprocess
import sys

from installers.advisories import EXPLAINED

SCRIPT = """
import sys
import engine.runner.llama.service
from engine.runner.llama.native.llama_api import start_backends
start_backends()
print("llama_cpp.llama_cpp" in sys.modules, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_no_explained_package_is_imported_by_a_runner():
    names = [each.split()[0].replace("-", "_") for each in EXPLAINED]
    argv = [sys.executable, "-c", SCRIPT, *names]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["True"]
