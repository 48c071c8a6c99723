"""Another release of llama-cpp-python, built, checked, used by real runners and rolled back.

Usage: python tests/optin/engine_version.py VERSION|WHEEL [MODEL.gguf ...]. Needs a compiler for a number: four
minutes on two free cores. Last result: log-archive.md, "Other versions of the engine".
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.main import main as tessera
from devices.llama_cpp_versions.folder import engines_folder
from devices.llama_cpp_versions.store import VersionStore
from engine.core.types import GenerationRequest, SamplingParams
from tests.support.runner_calls import answered, with_runner

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Der Turm ist", "1, 2, 3, 4,")
TOKENS = 32


def command(*arguments: str) -> int:
    sys.argv = ["tessera", "engine", *arguments]
    try:
        tessera()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def texts(model: Path) -> list[str]:
    async def ask(runner):
        requests = [
            GenerationRequest(prompt=p, max_tokens=TOKENS, sampling=SamplingParams(temperature=0)) for p in PROMPTS
        ]
        return [answer.text for answer in await asyncio.gather(*(answered(runner, each) for each in requests))]

    return with_runner(model, ask)


def main() -> int:
    given, models = sys.argv[1], [Path(each) for each in sys.argv[2:]]
    models = models or sorted((ROOT / "assets" / "models").glob("*.gguf"))
    with tempfile.TemporaryDirectory() as home:
        os.environ["TESSERA_HOME"] = home
        before = {model: texts(model) for model in models}
        if command("install", given):
            return 1
        (version,) = VersionStore(engines_folder()).versions()
        if command("use", version.version):
            return 1
        for model in models:
            after = texts(model)
            same = sum(a == b for a, b in zip(before[model], after, strict=True))
            print(f"{model.name}: {same} of {len(after)} greedy answers of {TOKENS} tokens are the same")
        command("list")
        command("rollback")
        return 0 if all(texts(model) == before[model] for model in models) else 1


if __name__ == "__main__":
    sys.exit(main())
