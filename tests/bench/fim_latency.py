"""Time from a keystroke to the first token of a suggestion, through a real server.

    python tests/bench/fim_latency.py [--keystrokes 60] [--folder FOLDER]

Models: the bundled toy, and the shape of Qwen2.5-Coder-1.5B in Q8_0 with random weights (1.6 GB, in FOLDER).
The shape has the toy's vocabulary, filled up to Qwen's size, so that its prompts have tokens of usual length. What
it suggests says nothing, and most of its tokens have no text, so each response has one token; what it costs does
count. With the toy each keystroke closes the request of the one before, as editors do.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from app.client import Client
from app.code import fim_bench
from app.server_process import ServerProcess
from tests.bench.recording import record
from tests.support.models import shapes

TOY = ROOT / "assets" / "models" / "spark-f16.gguf"
# Source: config.json of Qwen/Qwen2.5-Coder-1.5B.
CODER = shapes.Shape(
    "qwen2", layers=28, embd=1536, heads=12, kv_heads=2, head_dim=128, ffn=8960, vocab=151_936, tied=True,
    qtype=gguf.GGMLQuantizationType.Q8_0,
)  # fmt: skip


def write_coder(path: Path) -> Path:
    """Write the shape with the toy's tokens."""
    toy = gguf.GGUFReader(TOY)

    def value(name: str) -> object:
        return toy.fields[f"tokenizer.ggml.{name}"].contents()

    tokens, types = list(value("tokens")), list(value("token_type"))  # type: ignore[call-overload]
    missing = CODER.vocab - len(tokens)
    writer = gguf.GGUFWriter(str(path), CODER.arch)
    shapes._metadata(writer, CODER)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(value("pre"))
    writer.add_token_list(tokens + [f"<unused{n}>" for n in range(missing)])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * missing)
    writer.add_token_merges(value("merges"))
    for name in ("bos", "eos", "eot", "fim_pre", "fim_suf", "fim_mid"):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value(f"{name}_token_id"))
    writer.add_add_bos_token(value("add_bos_token"))
    rng = np.random.default_rng(0)
    for name, dims in shapes.tensors(CODER):
        shapes._add(writer, rng, name, dims, CODER.qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def served(model: Path | None) -> Iterator[tuple[Client, str | None]]:
    """A server with a separate home folder, and the id of the imported model (None: the included one)."""
    with tempfile.TemporaryDirectory(prefix="fim-home-") as home:
        os.environ["TESSERA_HOME"] = home
        if model is not None:
            (Path(home) / "models").mkdir()
            (Path(home) / "models" / model.name).symlink_to(model)
        server = ServerProcess()
        client = server.connect(Client)
        try:
            yield client, model.stem if model is not None else None
        finally:
            client.close()
            server.stop()


def main() -> None:
    """Measure both and record the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keystrokes", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    coder = given.folder / "coder-1.5b-shape.gguf"
    if not coder.exists():
        write_coder(coder)
    source = Path(fim_bench.__file__)
    for label, path, tokens in (("toy", None, fim_bench.MAX_TOKENS), ("1.5B shape, Q8_0", coder, 1)):
        with served(path) as (client, model):
            found = fim_bench.run(
                client, source.read_text(), source.name, model=model, count=given.keystrokes, max_tokens=tokens
            )
        print(label, found)
        rows = {"p50": found.p50_ms, "p95": found.p95_ms, "first request": found.cold_ms}
        for metric, value in rows.items():
            record(
                "fim_latency", f"keystroke to first token, {metric}", round(value, 1), "ms",
                n=found.answered if metric != "first request" else 1,
                note=given.note,
                model=label,
                prompt_tokens=round(found.mean_prompt_tokens),
                cached=round(found.reuse_frac, 3),
            )  # fmt: skip


if __name__ == "__main__":
    main()
