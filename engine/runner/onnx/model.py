"""Loads one ONNX folder: checks it, then opens it with onnxruntime-genai on the requested provider."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from devices.errors import TesseraError
from engine.core.types import ModelFacts
from engine.onnx.folder import OnnxFolder, read_folder
from engine.onnx.safety import check_graph, count_parameters
from engine.runner import onnx_libraries as libraries
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.providers import Share, append_provider, chosen_provider, register_plugin, share_of
from engine.runner.onnx.vocabulary import FolderVocabulary
from engine.runner.protocol import LoadSettings

CPU: Final = "CPUExecutionProvider"


@dataclass
class LoadedFolder:
    """One loaded generating model. Owned by the scheduler's thread.

    `all_logits`: the graph outputs logits of every position, so that drafts can be verified.
    """

    og: Any
    model: Any
    folder: OnnxFolder
    vocabulary: FolderVocabulary
    settings: LoadSettings
    n_ctx: int
    n_params: int
    all_logits: bool
    provider: str = CPU
    notes: list[str] = field(default_factory=list)

    def generator(self, max_length: int) -> Any:
        """Return a sequence with space for `max_length` tokens. Raises: RuntimeError: no memory for its cache."""
        params = self.og.GeneratorParams(self.model)
        params.set_search_options(max_length=max_length, do_sample=False, batch_size=1)
        return self.og.Generator(self.model, params)


def read_checked(path: str) -> tuple[OnnxFolder, list[Any]]:
    """Return the folder and its graphs without weights, all checked. Raises: LoadFailed."""
    try:
        folder = read_folder(Path(path))
        return folder, [check_graph(graph, folder.path) for graph in folder.graphs]
    except TesseraError as error:
        raise LoadFailed(str(getattr(error, "reason", error))) from error
    except OSError as error:
        raise LoadFailed(error.strerror or str(error)) from error


def load(settings: LoadSettings, folder: OnnxFolder, graphs: list[Any]) -> LoadedFolder:
    """Load a generating folder and sample one token from it.

    Raises: LoadFailed: refused settings, a broken folder, a missing provider, or an output that is not a number.
    """
    try:
        og = libraries.genai()
    except (ImportError, OSError) as error:
        why = libraries.reason(error)
        raise LoadFailed(f"onnxruntime-genai does not load ({why}): pip install onnxruntime-genai") from error
    vocabulary = FolderVocabulary(folder.path / "tokenizer.json", list(folder.ends), folder.vocab)
    choice = chosen_provider(settings, folder)
    share = Share(CPU, 0, 0)
    if choice.name != CPU:
        plugin = register_plugin(og, choice)
        share = share_of(folder, choice, plugin=plugin) if choice.measurable else share
        if share.placed < share.total and not settings.allow_fallback:
            raise LoadFailed(share.refusal())
    try:
        config = og.Config(str(folder.path))
        config.overlay(json.dumps(_session(settings)))
        append_provider(config, choice)
        model = og.Model(config)
    except Exception as error:
        raise LoadFailed(choice.explain(libraries.reason(error))) from error
    logits = [output for graph in graphs for output in graph.graph.output if output.name == folder.logits]
    middle = logits[0].type.tensor_type.shape.dim[1].dim_value if logits else 1
    loaded = LoadedFolder(
        og=og,
        model=model,
        folder=folder,
        vocabulary=vocabulary,
        settings=settings,
        n_ctx=min(settings.n_ctx, folder.context or settings.n_ctx),
        n_params=folder.own.get("n_params") or sum(count_parameters(graph) for graph in graphs),
        all_logits=middle != 1,
        provider=choice.name,
        notes=[share.text()] if choice.name != CPU and choice.measurable else [],
    )
    _try(loaded)
    return loaded


def _session(settings: LoadSettings) -> dict[str, Any]:
    threads = {"intra_op_num_threads": settings.n_threads or 1, "inter_op_num_threads": 1}
    return {"model": {"decoder": {"session_options": threads}}}


def _try(loaded: LoadedFolder) -> None:
    """Compute one token: the first request does not pay for page faults, and a broken model is found now."""
    try:
        generator = loaded.generator(min(loaded.n_ctx, 16))
        generator.append_tokens(np.array([loaded.folder.bos], np.int32))
        row = np.asarray(generator.get_logits(), np.float32).reshape(-1)
    except Exception as error:
        raise LoadFailed(f"it does not run: {libraries.reason(error)}") from error
    if len(row) < loaded.vocabulary.size:
        raise LoadFailed(f"it gives {len(row)} logits, but its vocabulary has {loaded.vocabulary.size} tokens")
    if not np.isfinite(row).any() or np.isnan(row).any():
        raise LoadFailed("its output is not a number; the weights are damaged or too large for this provider")


def facts(loaded: LoadedFolder) -> ModelFacts:
    """Return the facts that the server and the window show about the loaded model."""
    folder, settings = loaded.folder, loaded.settings
    size = sum(p.stat().st_size for p in folder.path.iterdir() if p.is_file())
    return ModelFacts(
        architecture=folder.architecture,
        description=f"{folder.architecture} (ONNX Runtime)",
        n_params=loaded.n_params,
        size_bytes=size,
        n_vocab=loaded.vocabulary.size,
        n_ctx=loaded.n_ctx,
        n_ctx_train=folder.context,
        n_parallel=settings.n_parallel,
        n_embd=folder.hidden,
        chat_template=folder.template,
        bos=folder.marks.get("bos", ""),
        eos=folder.marks.get("eos", ""),
        add_bos=bool(loaded.vocabulary.tokenize("", add_special=True, parse_special=False)),
        fim=folder.fim,
        metadata={f"note.{i}": note for i, note in enumerate(loaded.notes)},
        backend=loaded.provider,
    )
