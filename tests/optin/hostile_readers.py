"""Readers of files that users exchange, with small valid files of each kind to damage, for hostile_input.py."""

import functools
import io
import json
import shutil
import tempfile
import wave
import zipfile
from pathlib import Path

import msgspec
import numpy as np

FOLDER = Path("tests/data/spark-hf")
CHATS = (
    [{"title": "t", "create_time": 1.0, "mapping": {"a": {"id": "a", "parent": None, "children": ["b"],
      "message": {"author": {"role": "user"}, "content": {"parts": ["Hi"]}, "create_time": 1.0}},
      "b": {"id": "b", "parent": "a", "children": [],
      "message": {"author": {"role": "assistant"}, "content": {"parts": ["Hello"]}}}}}],
    [{"name": "t", "uuid": "u", "chat_messages": [{"uuid": "a", "sender": "human", "text": "Hi",
      "content": [{"type": "text", "text": "Hi"}], "created_at": "2026-01-01T00:00:00Z"}]}],
    [{"chat": {"title": "t", "history": {"currentId": "a", "messages": {"a": {"id": "a", "parentId": None,
      "childrenIds": [], "role": "user", "content": "Hi"}}}}}],
    {"name": "t", "messages": [{"versions": [{"type": "singleStep", "role": "user",
      "content": [{"type": "text", "text": "Hi"}]}], "currentlySelected": 0}]},
)  # fmt: skip
MCP = {"mcpServers": {"a": {"command": "x", "args": ["-y"], "env": {"A": "1"}}, "b": {"url": "http://a/b"}}}
ANSWER = (
    "a.py\n<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n\n--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n"
)
GENERATING = {
    "model": {"type": "llama", "context_length": 64, "vocab_size": 8, "bos_token_id": 0, "eos_token_id": [2],
              "decoder": {"filename": "model.onnx", "num_hidden_layers": 1, "num_key_value_heads": 1,
                          "head_size": 2,
                          "hidden_size": 4, "session_options": {"provider_options": [{"cuda": {}}]},
                          "outputs": {"logits": "logits"}}},
    "search": {"max_length": 64},
}  # fmt: skip


class Place:
    """A folder in memory, if available, whose files are damaged one at a time."""

    def __init__(self, files):
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.files = files
        for name, raw in files.items():
            (self.folder / name).write_bytes(raw)

    def reader(self, name, read):
        """Read the folder with `raw` instead of the file `name`."""

        def with_damage(raw):
            path = self.folder / name
            path.write_bytes(raw)
            try:
                read(self.folder)
            finally:
                path.write_bytes(self.files[name])

        return with_damage


@functools.cache
def small_checkpoint():
    """A whole Hugging Face folder of some kilobytes: one layer, 264 tokens, no merges beyond a few."""
    config = json.loads((FOLDER / "config.json").read_text())
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text())
    kept = {word: at for word, at in tokenizer["model"]["vocab"].items() if at < 280}
    tokenizer["model"]["vocab"] = kept
    tokenizer["model"]["merges"] = [
        m for m in tokenizer["model"]["merges"][:40] if all(p in kept for p in (*_pair(m), "".join(_pair(m))))
    ]
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] < 280]
    config |= {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
               "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 280}  # fmt: skip
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": (280, 8), "model.norm.weight": (8,)}
    shapes |= {f"{layer}{n}.weight": (8,) for n in ("input_layernorm", "post_attention_layernorm")}
    for part, rows in (("q", 8), ("k", 4), ("v", 4)):
        shapes[f"{layer}self_attn.{part}_proj.weight"] = (rows, 8)
    shapes[f"{layer}self_attn.o_proj.weight"] = (8, 8)
    for part, shape in (("gate", (16, 8)), ("up", (16, 8)), ("down", (8, 16))):
        shapes[f"{layer}mlp.{part}_proj.weight"] = shape
    rows, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        rows[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(rows).encode()
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "tokenizer_config.json": (FOLDER / "tokenizer_config.json").read_bytes(),
        "generation_config.json": (FOLDER / "generation_config.json").read_bytes(),
        "model.safetensors": len(header).to_bytes(8, "little") + header + b"\0" * at,
    }


def _pair(merge):
    return merge if isinstance(merge, list) else merge.split(" ")


def _zip(name, raw):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, raw)
    return made.getvalue()


def _sound():
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\1" * 400)
    return made.getvalue()


def folders():
    """Readers of whole folders, by the file that is damaged: (reader, seeds, refusals)."""
    from devices.errors import TesseraError
    from engine.library.inspect_files import inspect_onnx, inspect_safetensors
    from engine.onnx.folder import read_folder
    from quantize.convert.folder import ConvertRequest, prepare

    def converted(folder):
        prepare(ConvertRequest(folder=folder, out=folder / "out.gguf"), lambda *_: None)

    found = {}
    checkpoint = Place(small_checkpoint())
    for name, raw in checkpoint.files.items():
        found[f"folder's {name}"] = (checkpoint.reader(name, converted), [raw], (TesseraError, OSError))
    looked = Place(small_checkpoint())
    for name in ("config.json", "model.safetensors"):
        reader = looked.reader(name, inspect_safetensors)
        found[f"library: {name}"] = (reader, [looked.files[name]], (TesseraError, OSError))
    small = {"genai_config.json": json.dumps(GENERATING).encode(), "model.onnx": b"x",
             "tokenizer_config.json": (FOLDER / "tokenizer_config.json").read_bytes()}  # fmt: skip
    onnx = Place(small)
    for name in ("genai_config.json", "tokenizer_config.json"):
        both = lambda folder: (read_folder(folder), inspect_onnx(folder))
        found[f"ONNX {name}"] = (onnx.reader(name, both), [small[name]], (TesseraError, OSError))
    shutil.rmtree(checkpoint.folder / "out.gguf", ignore_errors=True)
    return found


def single_files():
    """Readers of one file or text: (reader, seeds, refusals)."""
    from app.code.agent.transcript import read_transcript
    from app.code.edits.parse import parse_answer
    from app.imports.read import read_chats
    from app.imports.types import ImportFailed
    from app.tools.mcp_config import BadMcpConfig, parse_servers
    from devices.errors import TesseraError
    from engine.library.origins import NOTE_NAME, DownloadNote, read_note
    from engine.runner.onnx.errors import LoadFailed
    from engine.runner.onnx.service import read_facts
    from engine.runner.onnx.speech.audio import BadSound, read_sound
    from engine.upstreams.link import NoList, read_list
    from quantize.job.plan_file import read_plan
    from quantize.onnx.fixed_folder import FACTS

    scratch = Place({})

    def as_file(name, read):
        def reader(raw):
            (scratch.folder / name).write_bytes(raw)
            return read(scratch.folder / name)

        return reader

    exports = [json.dumps(chats).encode() for chats in CHATS]
    line = json.dumps({"id": "a", "role": "user", "content": [{"type": "text", "text": {"value": "Hi"}}]}).encode()
    note = DownloadNote(repo="a/b", revision="c", endpoint="https://x", license="mit", sha256={"a": "0" * 64})
    listing = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 9, "meta": {"n_ctx": 3},
                         "capabilities": ["chat"], "origin": "local"}]}  # fmt: skip
    facts = {"piece": 4, "past": 8, "layers": 1, "embd": 8, "vocab": 9, "kv_heads": 1, "head_dim": 4, "begin": 1}
    told = (TesseraError, OSError)
    return {
        "plan": (as_file("a.plan.json", read_plan), [plan_seed()], told),
        "chats": (as_file("c.json", read_chats), exports, ImportFailed),
        "chats in a zip": (as_file("c.zip", read_chats), [_zip("conversations.json", exports[0])], ImportFailed),
        "chats of Jan": (as_file("messages.jsonl", read_chats), [line + b"\n" + line], ImportFailed),
        "MCP servers": (
            lambda raw: parse_servers(raw.decode("utf-8", "replace")), [json.dumps(MCP).encode()], BadMcpConfig),
        "agent's transcript": (
            as_file("t.jsonl", lambda path: list(read_transcript(path))),
            [b'{"type":"Thought","text":"a"}\n' * 3], ValueError),
        "edits of a model": (lambda raw: parse_answer(raw.decode("utf-8", "replace")), [ANSWER.encode()], ()),
        "download note": (
            as_file(NOTE_NAME, lambda path: read_note(path.parent)), [msgspec.json.encode(note)], ()),
        "upstream's list": (read_list, [json.dumps(listing).encode()], NoList),
        "sound": (lambda raw: read_sound(b"RIFF" + raw[4:8] + b"WAVE" + raw[12:]), [_sound()], BadSound),
        "fixed ONNX facts": (
            as_file(FACTS, lambda path: read_facts(path.parent)), [json.dumps(facts).encode()], LoadFailed),
    }  # fmt: skip


def plan_seed():
    """A plan in the current format with one tensor; damage mostly hits what follows its head."""
    from quantize.job.portable_plan import FORMAT, RECIPE, VERSION

    head = {"format": FORMAT, "version": VERSION, "recipe": RECIPE}
    return json.dumps({**head, "plan": {"tensors": [{"name": "a", "qtype": "Q4_K", "shape": [256, 2]}]}}).encode()
