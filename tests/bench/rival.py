"""llama-server and llama-bench of the same commit, as the other side of a comparison."""

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2


class LlamaServer:
    """A llama-server process on a free port, with the settings a fair comparison needs."""

    def __init__(
        self, tools: Path, model: str, *, threads: int, context: int, parallel: int, more: Sequence[str] = ()
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [str(tools / "llama-server"), "-m", model, "--port", str(port), "-t", str(threads)]
        command += ["-c", str(context), "-np", str(parallel), "--no-warmup", "--kv-unified", "-lv", "0", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started = time.monotonic()
        while True:
            try:
                if httpx2.get(f"{self.url}/health", timeout=1).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            if self.process.poll() is not None or time.monotonic() - started > 120:
                raise RuntimeError("llama-server did not start")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(20)


def llama_bench(tools: Path, model: str, *, threads: int, prompt: int, generate: int) -> dict[str, float]:
    """Tokens per second of prefill (`pp`) and decode (`tg`) as llama-bench measures them."""
    command = [str(tools / "llama-bench"), "-m", model, "-t", str(threads), "-o", "json", "-r", "1"]
    command += ["-p", str(prompt), "-n", str(generate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    return {("pp" if row["n_prompt"] else "tg"): float(row["avg_ts"]) for row in rows}
