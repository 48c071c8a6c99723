"""ONNX Runtime's official wheels report home by default; Tessera's leave no file and open no connection."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.runner.process import runner_environment
from quantize.onnx.folder import convert_gguf

ROOT = Path(__file__).resolve().parents[2]
LOOK = """
import sys, asyncio, time, psutil
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.core.types import GenerationRequest

async def main():
    seen = set()
    runner = await RunnerProcess.start("onnx", sys.argv[1])
    await runner.load(LoadSettings(path=sys.argv[1], n_ctx=512, n_parallel=1, n_threads=1))
    watched = psutil.Process(runner.pid)
    for _ in range(3):
        async for _event in runner.generate(GenerationRequest(prompt="hi", max_tokens=20)):
            seen |= {c.raddr for c in watched.net_connections("all") if c.raddr}
            seen |= {c.status for c in watched.net_connections("inet")}
    maps = {m.path for m in watched.memory_maps()} if hasattr(watched, "memory_maps") else set()
    assert any("onnxruntime" in m for m in maps)
    print("connections", len(seen))
    await runner.stop()

asyncio.run(main())
"""


@pytest.mark.parametrize("preset", ["", "0"])
def test_no_file_and_no_connection(tmp_path, bundled_model, preset):
    """`preset`: even an environment that asks for telemetry does not get it."""
    convert_gguf(bundled_model, tmp_path / "spark")
    home = tmp_path / "home"
    home.mkdir()
    env = runner_environment(
        {
            "HOME": str(home),
            "USERPROFILE": str(home),
            "XDG_CACHE_HOME": str(home / ".cache"),
            "LOCALAPPDATA": str(home),
        }
    )
    env["ORT_DISABLE_TELEMETRY"] = preset
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "spark")], env=env, cwd=ROOT, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split()[-1] == b"0"
    assert [p for p in home.rglob("*") if p.is_file()] == []
