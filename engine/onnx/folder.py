"""Details of an ONNX model folder from its small JSON files: kind, sizes, and the target runtime."""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, Literal

import msgspec

from engine.core.hf_folder import chat_template, read_json, text, tokenizer_config
from quantize.errors import BadFile, RefusedFormat
from quantize.files.safetensors_file import links_root, safe_member

Kind = Literal["generate", "embedding", "rerank"]
CONFIG: Final = "genai_config.json"
GRAPH: Final = "model.onnx"
# Graphs written by OpenVINO's own converter, in a format that ONNX Runtime does not read.
OPENVINO_GRAPHS: Final = frozenset(("openvino_model.xml", "openvino_language_model.xml"))
# Far beyond any model; larger numbers mean a broken or hostile file.
LIMITS: Final = {
    "context_length": 1 << 24,
    "vocab_size": 1 << 22,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 10,
    "num_key_value_heads": 1 << 10,
    "head_size": 1 << 12,
    "hidden_size": 1 << 17,
}
# Settings that make ONNX Runtime load native code named by the model. They are refused in a model's folder.
_CODE_KEYS: Final = ("custom_ops_library", "ep_library", "custom_op_library", "ep_library_path", "library_path")
_LIBRARY: Final = re.compile(r"\.(so|dll|dylib)(\.|$)", re.IGNORECASE)
# Libraries of Qualcomm's SDK that its model folders name; the provider finds them in its own folder.
_KNOWN_LIBRARIES: Final = ("qnnhtp.dll", "qnncpu.dll", "qnngpu.dll", "libqnnhtp.so", "libqnncpu.so", "libqnngpu.so")
_RELEASE: Final = re.compile(r"rai[_-](\d+\.\d+(?:\.\d+)?)", re.IGNORECASE)


class OnnxFolder(msgspec.Struct, frozen=True, kw_only=True):
    """One folder. `graphs` are its ONNX files; `providers` those in its configuration, in that order.

    `release` is the Ryzen AI release it was compiled for, if stated. Sizes are 0 if unknown.
    """

    path: Path
    kind: Kind
    architecture: str
    graphs: tuple[Path, ...]
    providers: tuple[str, ...] = ()
    release: str | None = None
    context: int = 0
    vocab: int = 0
    layers: int = 0
    kv_heads: int = 0
    head_size: int = 0
    hidden: int = 0
    bos: int = 0
    ends: tuple[int, ...] = ()
    logits: str = "logits"
    template: str | None = None
    marks: dict[str, str] = {}
    fim: dict[str, str] = {}
    own: dict[str, Any] = {}

    def kv_bytes(self, tokens: int) -> int:
        """KV cache bytes of one sequence of `tokens` tokens in float32, which ONNX Runtime uses on a CPU."""
        return 2 * self.layers * self.kv_heads * self.head_size * 4 * tokens


def read_folder(path: Path) -> OnnxFolder:
    """Read and check one folder.

    Raises: BadFile: a file is missing, broken or too large. RefusedFormat: it needs to run code, or is in
    OpenVINO's own
    format.
    """
    root = links_root(path)
    if (path / CONFIG).exists():
        return _generating(path, root)
    if (path / "config.json").exists():
        return _encoding(path, root)
    raise BadFile(str(path), f"there is neither {CONFIG} nor config.json in it")


def _generating(path: Path, root: Path) -> OnnxFolder:
    config = read_json(safe_member(path, CONFIG, root))
    model = config.get("model")
    if not isinstance(model, dict):
        raise BadFile(str(path / CONFIG), "there is no model section in it")
    decoder = model.get("decoder")
    decoder = decoder if isinstance(decoder, dict) else {}
    for section in (model, decoder):
        for key in LIMITS:
            _number(section, key, path)
    _refuse_code(config, path)
    names = list(dict.fromkeys(_filenames(model))) or [GRAPH]
    graphs = tuple(safe_member(path, name, root) for name in names if name.endswith(".onnx"))
    if not graphs:
        raise BadFile(str(path / CONFIG), "it names no ONNX graph")
    ends = model.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    outputs = decoder.get("outputs")
    tokens = tokenizer_config(path, root)
    own = path / "tessera.json"
    return OnnxFolder(
        path=path,
        kind="generate",
        architecture=text(model.get("type")) or "",
        graphs=graphs,
        providers=tuple(dict.fromkeys(_providers(model))),
        release=_release(path, root),
        context=_number(model, "context_length", path),
        vocab=_number(model, "vocab_size", path),
        layers=_number(decoder, "num_hidden_layers", path),
        kv_heads=_number(decoder, "num_key_value_heads", path),
        head_size=_number(decoder, "head_size", path),
        hidden=_number(decoder, "hidden_size", path),
        bos=model["bos_token_id"] if isinstance(model.get("bos_token_id"), int) else 0,
        ends=tuple(e for e in ends if isinstance(e, int)),
        logits=(text(outputs.get("logits")) if isinstance(outputs, dict) else None) or "logits",
        template=chat_template(path, root),
        marks={k: _mark(tokens.get(f"{k}_token")) for k in ("bos", "eos") if tokens.get(f"{k}_token")},
        fim=_texts(tokens.get("fim_tokens")),
        own=read_json(safe_member(path, own.name, root)) if own.exists() else {},
    )


def _encoding(path: Path, root: Path) -> OnnxFolder:
    config = read_json(safe_member(path, "config.json", root))
    holder = next((f for f in (path, path / "onnx") if (f / GRAPH).exists()), None)
    if holder is None and any((path / name).exists() for name in OPENVINO_GRAPHS):
        why = "it is in OpenVINO's own format (openvino_*.xml), which OpenVINO GenAI runs and ONNX Runtime does not"
        raise RefusedFormat(str(path), f"{why}; take the model as ONNX (genai_config.json) or as GGUF instead")
    if holder is None:
        raise BadFile(str(path), f"there is no {GRAPH} in it")
    if not (path / "tokenizer.json").exists():
        raise BadFile(str(path), "there is not a tokenizer.json in it")
    heads = config.get("architectures")
    head = text(heads[0]) if isinstance(heads, list) and heads else None
    ranks = bool(head and head.endswith("ForSequenceClassification"))
    return OnnxFolder(
        path=path,
        kind="rerank" if ranks else "embedding",
        architecture=text(config.get("model_type")) or "",
        graphs=(safe_member(holder, GRAPH, root),),
        context=min(_positive_int(config.get("max_position_embeddings")), LIMITS["context_length"]),
        vocab=min(_positive_int(config.get("vocab_size")), LIMITS["vocab_size"]),
        layers=min(_positive_int(config.get("num_hidden_layers")), LIMITS["num_hidden_layers"]),
        hidden=min(_positive_int(config.get("hidden_size")), LIMITS["hidden_size"]),
    )


def pooling(path: Path) -> str:
    """The pooling of an embedding model, "cls" or "mean", from its sentence-transformers module."""
    module = path / "1_Pooling" / "config.json"
    if not module.exists():
        return "mean"
    config = read_json(safe_member(module.parent, module.name, links_root(path)))
    return "cls" if config.get("pooling_mode_cls_token") else "mean"


def _positive_int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _number(section: dict[str, Any], key: str, path: Path) -> int:
    value = section.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LIMITS[key]:
        raise BadFile(str(path / CONFIG), f"{key} is {str(value)[:40]}, not a number up to {LIMITS[key]}")
    return value


def _filenames(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "filename" and isinstance(inner, str):
                yield inner
            else:
                yield from _filenames(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _filenames(inner)


def _providers(value: Any) -> Iterator[str]:
    """Provider names in every `provider_options`, including those of pipeline stages."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "provider_options" and isinstance(inner, list):
                for options in inner:
                    if isinstance(options, dict):
                        yield from (str(name)[:64] for name in options)
            else:
                yield from _providers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _providers(inner)


def _refuse_code(value: Any, path: Path) -> None:
    """Refuse settings that load a library or point outside the folder. Raises: RefusedFormat."""
    if isinstance(value, list):
        for inner in value:
            _refuse_code(inner, path)
    if not isinstance(value, dict):
        return
    for key, inner in value.items():
        if key.lower() in _CODE_KEYS:
            raise RefusedFormat(str(path / CONFIG), f"it asks to load its own library ({key})")
        if isinstance(inner, str):
            _refuse_path(key, inner, path)
        else:
            _refuse_code(inner, path)


def _refuse_path(key: str, value: str, path: Path) -> None:
    if key in {"chat_template", "template"}:
        return
    if _LIBRARY.search(value) and value.lower() not in _KNOWN_LIBRARIES:
        raise RefusedFormat(str(path / CONFIG), f"it asks to load its own library ({key}: {value[:80]})")
    windows, posix = PureWindowsPath(value), PurePosixPath(value)
    if windows.drive or windows.root or posix.is_absolute() or ".." in (*windows.parts, *posix.parts):
        raise RefusedFormat(str(path / CONFIG), f"{key} points outside the folder: {value[:80]}")


def _release(path: Path, root: Path) -> str | None:
    """The Ryzen AI release from `rai_config.json`, else from the folder's name (AMD's naming), or None."""
    config = path / "rai_config.json"
    if config.exists():
        config_json = read_json(safe_member(path, config.name, root))
        version = text(config_json.get("rai_version")) or text(config_json.get("version"))
        if version:
            return version[:20]
        releases = re.findall(r'"(\d+\.\d+(?:\.\d+)?)"\s*:', json.dumps(config_json))
        if releases:
            return str(max(releases, key=lambda r: [int(n) for n in r.split(".")]))
    match = _RELEASE.search(path.name) or _RELEASE.search(root.name)
    return str(match[1]) if match else None


def _mark(value: object) -> str:
    return text(value.get("content")) or "" if isinstance(value, dict) else text(value) or ""


def _texts(value: object) -> dict[str, str]:
    return {str(k): v for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}
