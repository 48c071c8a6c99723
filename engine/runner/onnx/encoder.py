"""Embeddings and rerank scores of encoder graphs with plain ONNX Runtime, one limited batch per step."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from devices.errors import TesseraError
from engine.core.types import ModelFacts
from engine.onnx.folder import OnnxFolder, pooling
from engine.onnx.safety import count_parameters
from engine.runner import onnx_libraries as libraries
from engine.runner.faults import embed_fault, input_fault
from engine.runner.onnx.errors import LoadFailed
from engine.runner.onnx.providers import CPU, chosen_provider, open_session, register_plugin, share_of
from engine.runner.onnx.vocabulary import FolderVocabulary
from engine.runner.protocol import Embed, Embedded, Fault, LoadSettings
from engine.runner.text_limits import shortened

# Texts per run; texts of similar length share one, so that there is little padding.
BATCH: Final = 16
DEFAULT_LIMIT: Final = 512
# Input names of the usual encoder exports; graphs with other inputs are not supported.
_KNOWN_INPUTS: Final = frozenset({"input_ids", "attention_mask", "token_type_ids"})
# A pooled output is used directly; per-token rows are pooled here.
_POOLED: Final = ("sentence_embedding", "pooler_output_normalized", "embedding", "embeddings")
_PAIR: Final = 2


@dataclass
class _Job:
    id: int
    inputs: list[tuple[list[int], list[int]]]
    normalize: bool
    order: list[int]
    cut: dict[int, int]
    done: int = 0
    vectors: dict[int, Any] = field(default_factory=dict)


class Encoder:
    """Owns the session. All calls come from one thread; `step` is one run."""

    def __init__(self, settings: LoadSettings, folder: OnnxFolder, graphs: list[Any]) -> None:
        """Load the session and test it. Raises: LoadFailed."""
        self._folder = folder
        self._settings = settings
        self._params = sum(count_parameters(graph) for graph in graphs)
        self.vocabulary = FolderVocabulary(folder.path / "tokenizer.json", [], 0)
        self.ranks = folder.kind == "rerank"
        self.limit = min(folder.context or DEFAULT_LIMIT, settings.n_ctx)
        try:
            self._pooling = pooling(folder.path)
        except TesseraError as error:
            raise LoadFailed(str(getattr(error, "reason", error))) from error
        self._session, self.provider, self.note = _session(settings, folder)
        inputs = self._session.get_inputs()
        self._inputs = {i.name for i in inputs}
        self._kind = np.int32 if any(i.type == "tensor(int32)" for i in inputs) else np.int64
        # A graph of fixed shapes takes one text of this many tokens per run.
        wide: list[Any] = next((i.shape for i in inputs if i.name == "input_ids"), [])
        self._fixed = wide[1] if len(wide) == _PAIR and isinstance(wide[1], int) else 0
        if self._fixed:
            self.limit = min(self.limit, self._fixed)
        if not {"input_ids"} <= self._inputs <= _KNOWN_INPUTS:
            raise LoadFailed(f"its inputs {sorted(self._inputs)} are not those of a text encoder")
        outputs = [o.name for o in self._session.get_outputs()]
        self._output = next((n for n in outputs if n in _POOLED), outputs[0])
        self._jobs: deque[_Job] = deque()
        try:
            trial = self._run([(self.vocabulary.encoding("a").ids or [0], [])])
        except Exception as error:
            raise LoadFailed(f"it does not run: {libraries.reason(error)}") from error
        if not np.isfinite(trial).all():
            raise LoadFailed("its output is not a number; the weights are damaged")
        self.width = trial.shape[1]

    @property
    def busy(self) -> bool:
        """Whether any job is queued."""
        return bool(self._jobs)

    def facts(self) -> ModelFacts:
        """Return the facts that the server shows about the loaded model."""
        folder = self._folder
        return ModelFacts(
            architecture=folder.architecture,
            description=f"{folder.architecture} (ONNX Runtime)",
            n_params=self._params,
            size_bytes=sum(p.stat().st_size for g in folder.graphs for p in g.parent.iterdir() if p.is_file()),
            n_vocab=self.vocabulary.size,
            n_ctx=self.limit,
            n_ctx_train=folder.context,
            n_parallel=1,
            n_embd=self.width,
            chat_template=None,
            bos="",
            eos="",
            add_bos=False,
            fim={},
            metadata={"note.0": self.note} if self.note else {},
            capabilities=("rerank" if self.ranks else "embedding",),
            backend=self.provider,
        )

    def add(self, message: Embed) -> Fault | None:
        """Queue a message; return a Fault if it cannot run."""
        if (fault := embed_fault(message, ranks=self.ranks)) is not None:
            return fault
        rows = [self._tokens(item, message.query) for item in message.inputs]
        cut: dict[int, int] = {}
        if message.truncate:
            cut = {index: len(ids) for index, (ids, _) in enumerate(rows) if len(ids) > self.limit}
            rows = [self._cut(ids, kinds) for ids, kinds in rows]
        for index, (ids, _) in enumerate(rows):
            if (fault := input_fault(message.id, index, ids, self.limit, self.vocabulary.size)) is not None:
                return fault
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
        self._jobs.append(_Job(message.id, rows, message.normalize and not self.ranks, order, cut))
        return None

    def _cut(self, ids: list[int], kinds: list[int]) -> tuple[list[int], list[int]]:
        """Truncate one input to the limit, but keep its closing token."""
        if len(ids) <= self.limit:
            return ids, kinds
        return shortened(ids, self.limit, self.vocabulary.control), kinds[: self.limit]

    def cancel(self, job_id: int) -> None:
        """Drop a cancelled job."""
        self._jobs = deque(job for job in self._jobs if job.id != job_id)

    def step(self) -> Embedded | Fault | None:
        """Run one batch; return the result when a job is complete."""
        if not self._jobs:
            return None
        job = self._jobs[0]
        chosen = job.order[job.done : job.done + BATCH]
        try:
            rows = self._run([job.inputs[i] for i in chosen])
        except Exception as error:
            self._jobs.popleft()
            return Fault(id=job.id, code="engine_failed", message=libraries.reason(error))
        if not np.isfinite(rows).all():
            self._jobs.popleft()
            return Fault(id=job.id, code="not_finite", message="The model's output is not a number.")
        if job.normalize:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        job.vectors.update(zip(chosen, rows.astype("<f4"), strict=True))
        job.done += len(chosen)
        if job.done < len(job.inputs):
            self._jobs.rotate(-1)  # let short jobs run between the steps of a long one
            return None
        self._jobs.popleft()
        vectors = [job.vectors[i].tobytes() for i in range(len(job.inputs))]
        return Embedded(
            id=job.id,
            width=self.width,
            vectors=vectors,
            token_counts=[len(ids) for ids, _ in job.inputs],
            cut=job.cut,
        )

    def _tokens(self, item: str | list[int], query: str | None) -> tuple[list[int], list[int]]:
        if not isinstance(item, str):
            return list(item), []
        clean = item.encode("utf-8", "replace").decode()
        encoding = self.vocabulary.encoding(clean) if query is None else self.vocabulary.pair(query, clean)
        return list(encoding.ids), list(encoding.type_ids)

    def _run(self, rows: list[tuple[list[int], list[int]]]) -> Any:
        """Return pooled rows, (texts, width) float32."""
        if self._fixed and len(rows) > 1:
            return np.concatenate([self._run([row]) for row in rows])
        longest = self._fixed or max(len(ids) for ids, _ in rows)
        ids, mask, kinds = (np.zeros((len(rows), longest), self._kind) for _ in range(3))
        for i, (tokens, types) in enumerate(rows):
            ids[i, : len(tokens)], mask[i, : len(tokens)] = tokens, 1
            if types:
                kinds[i, : len(types)] = types
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
        output = self._session.run([self._output], {k: v for k, v in feeds.items() if k in self._inputs})[0]
        values = np.asarray(output, np.float32)
        if values.ndim == _PAIR:
            return values[:, :1] if self.ranks else values
        if self._pooling == "cls" or self.ranks:
            return values[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        return (values * weights).sum(axis=1) / weights.sum(axis=1)


def _session(settings: LoadSettings, folder: OnnxFolder) -> tuple[Any, str, str]:
    """Return the session, its provider, and the share of operators if it is not the CPU."""
    try:
        ort = libraries.onnxruntime()
    except (ImportError, OSError) as error:
        raise LoadFailed(
            f"ONNX Runtime does not load ({libraries.reason(error)}): pip install onnxruntime"
        ) from error
    choice = chosen_provider(settings, folder)
    note = ""
    if choice.name != CPU:
        share = share_of(folder, choice, plugin=register_plugin(ort, choice, for_genai=False))
        if share.placed < share.total and not settings.allow_fallback:
            raise LoadFailed(share.refusal())
        note = share.text()
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.n_threads or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = open_session(ort, options, str(folder.graphs[0]), choice)
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(choice.explain(libraries.reason(error))) from error
    return session, choice.name, note
