"""Embeddings and rerank scores: a second context on the loaded model, one limited decode per step.

All conditions under which llama.cpp would abort the process are checked before the call: sizes of batch and
micro-batch, positions beyond the trained context, sequence ids and token ids.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.runner.faults import embed_fault, input_fault, too_long
from engine.runner.int8_embedder import NotQuick, QuickTexts
from engine.runner.llama.batch.threads import WIDE_ROWS, ThreadGovernor
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.engine_args import apply_to_context
from engine.runner.llama.native.model import LoadedModel, flash_attention
from engine.runner.llama.native.self_check import ONE_THREAD_BYTES
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.load_limits import KV_TYPES
from engine.runner.protocol import Embed, Embedded, Fault, LoadSettings
from engine.runner.text_limits import TooManyTokens, shortened

# llama.h, enum llama_pooling_type.
_POOL_NONE: Final = 0
_POOL_MEAN: Final = 1
_POOL_CLS: Final = 2
_POOL_RANK: Final = 4
# A chat model that also embeds needs a second KV cache; this limits its size.
CHAT_LIMIT: Final = 2048
# Embedding models read long documents, but compute buffers grow with the square of an encoder's input.
EMBED_LIMIT: Final = 8192
# llama.cpp reserves logits for every token of an embedding batch (n_vocab floats each), used or not.
OUTPUT_BYTES: Final = 1 << 30
# Tokens of a causal model decoded per step: a chat waits no longer than this for an embedding.
CHUNK: Final = 512
# Tokens of several inputs decoded together: enough to fill the kernels, few enough to limit useless attention.
SHARED: Final = 256
MAX_SEQUENCES: Final = 16
# Maximum characters of a word that may be one token, if tokens do not contain exactly the text's bytes.
_LONG_WORD: Final = 256


class _Refused(Exception):
    """An input cannot be embedded; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class CannotEmbed(Exception):
    """No embedding context could be created; the message says why."""


@dataclass
class _Job:
    """One Embed message.

    `tokens` are those of the inputs up to the current one; `vectors` are the results so far.
    """

    id: int
    inputs: list[str | list[int]]
    query: str | None
    normalize: bool
    cut: dict[int, int] = field(default_factory=dict)
    truncate: bool = False
    quick: bool = False
    tokens: list[list[int]] = field(default_factory=list)
    next_input: int = 0
    done_tokens: int = 0
    vectors: list[Any] = field(default_factory=list)


class Embedder:
    """Owns the embedding context. All calls come from the scheduler's thread; `step` is one decode."""

    def __init__(self, loaded: LoadedModel, vocabulary: LlamaVocabulary, metadata: dict[str, str]) -> None:
        api, settings = loaded.api, loaded.settings
        self._loaded = loaded
        self._vocabulary = vocabulary
        trained = int(api.llama_model_n_ctx_train(loaded.model))
        architecture = metadata.get("general.architecture", "")
        causal = loaded.memory is not None and metadata.get(f"{architecture}.attention.causal") != "false"
        limit = min(trained or CHAT_LIMIT, EMBED_LIMIT if settings.embeddings else min(CHAT_LIMIT, settings.n_ctx))
        rows = max(OUTPUT_BYTES // (4 * loaded.n_vocab), 64)
        self.limit = limit if causal else min(limit, rows)
        self._chunk = min(self.limit, CHUNK, rows) if causal else self.limit
        self._context = self._make_context(loaded, metadata.get(f"{architecture}.pooling_type"))
        pooling = int(api.llama_pooling_type(self._context))
        self.ranks = pooling == _POOL_RANK
        self._pooling = pooling
        self.width = int(
            api.llama_model_n_cls_out(loaded.model) if self.ranks else api.llama_model_n_embd_out(loaded.model)
        )
        self._memory = api.llama_get_memory(self._context)
        self._governor = ThreadGovernor(int(api.llama_n_threads_batch(self._context)))
        self._quick = QuickChoice(settings, self._governor.most)
        self._small = int(api.llama_model_size(loaded.model)) < ONE_THREAD_BYTES and not settings.devices
        if self._small and self._governor.most > 1:
            # Several threads lose seconds on a busy machine; on an idle one the governor tries all of them soon.
            self._governor.threads = 1
            self._set_threads(1)
        self._batch = Batch(
            replace(
                loaded, context=self._context, memory=self._memory, n_batch=self._chunk, max_outputs=self._chunk
            )
        )
        self._jobs: deque[_Job] = deque()

    def _make_context(self, loaded: LoadedModel, pooling: str | None) -> Any:
        api, settings = loaded.api, loaded.settings
        params = api.llama_context_default_params()
        params.n_ctx = self.limit
        params.n_batch = params.n_ubatch = self._chunk
        params.n_seq_max = MAX_SEQUENCES
        params.kv_unified = True
        params.embeddings = True
        params.no_perf = True
        params.flash_attn_type = flash_attention(settings, "auto")
        params.type_k = params.type_v = KV_TYPES["f16"]
        apply_to_context(params, settings)
        if settings.n_threads:
            params.n_threads = settings.n_threads
            params.n_threads_batch = settings.n_threads_batch or settings.n_threads
        if pooling is None or int(pooling) <= _POOL_NONE:
            # a chat model's file names no pooling, and per-token rows are not used here
            params.pooling_type = _POOL_MEAN
        context = api.llama_init_from_model(loaded.model, params)
        if not context:
            raise CannotEmbed(f"llama.cpp made no embedding context of {self.limit} tokens (memory, or the model)")
        return context

    @property
    def busy(self) -> bool:
        """Whether any job is queued."""
        return bool(self._jobs)

    def add(self, message: Embed) -> Fault | None:
        """Queue a message; return a Fault if it cannot run."""
        if (fault := embed_fault(message, ranks=self.ranks)) is not None:
            return fault
        job = _Job(message.id, message.inputs, message.query, message.normalize and not self.ranks)
        job.truncate = message.truncate
        job.quick = message.quick and not self.ranks
        self._jobs.append(job)
        return None

    def cancel(self, job_id: int) -> None:
        """Drop a cancelled job."""
        if self._jobs and self._jobs[0].id == job_id and self._jobs[0].done_tokens:
            # Otherwise the computed part of its long input would precede the next input, which llama.cpp would
            # refuse.
            self._loaded.api.llama_memory_clear(self._memory, False)
        if any(job.id == job_id for job in self._jobs):
            self._jobs = deque(job for job in self._jobs if job.id != job_id)

    def _tokens(self, item: str | list[int], query: str | None, limit: int | None) -> list[int]:
        vocabulary = self._vocabulary
        if not isinstance(item, str):
            return item
        if query is None:
            return vocabulary.tokenize(item, add_special=True, parse_special=True, limit=limit)
        api, model, vocab = self._loaded.api, self._loaded.model, self._loaded.vocab
        template = api.llama_model_chat_template(model, b"rerank")
        if template:
            text = template.decode("utf-8", "replace").replace("{query}", query).replace("{document}", item)
            return vocabulary.tokenize(text, add_special=False, parse_special=True, limit=limit)
        begin = [api.llama_vocab_bos(vocab)] if api.llama_vocab_get_add_bos(vocab) else []
        end = api.llama_vocab_eos(vocab)
        end = [end if end >= 0 else api.llama_vocab_sep(vocab)] if api.llama_vocab_get_add_eos(vocab) else []
        between = [api.llama_vocab_sep(vocab)] if api.llama_vocab_get_add_sep(vocab) else []
        query_tokens = vocabulary.tokenize(query, add_special=False, parse_special=False, limit=limit)
        text_tokens = vocabulary.tokenize(item, add_special=False, parse_special=False, limit=limit)
        return [*begin, *query_tokens, *end, *between, *text_tokens, *end]

    def _input(self, job: _Job, index: int) -> list[int]:
        """Return an input's tokens. Inputs are tokenized when needed, so a step waits only for its own texts.

        Raises: _Refused.
        """
        if index == len(job.tokens):
            try:
                tokens = (
                    self._shortened(job, index)
                    if job.truncate
                    else self._tokens(job.inputs[index], job.query, self.limit)
                )
            except TooManyTokens as error:
                raise _Refused(too_long(job.id, index, error.at_least, self.limit)) from None
            fault = input_fault(job.id, index, tokens, self.limit, self._vocabulary.size)
            if fault is not None:
                raise _Refused(fault)
            job.tokens.append(tokens)
        return job.tokens[index]

    def _shortened(self, job: _Job, index: int) -> list[int]:
        """Return an input's first tokens; only as much text is tokenized as these can contain."""
        item = job.inputs[index]
        if isinstance(item, str):
            item = item[: self.limit * (self._vocabulary.longest or _LONG_WORD)]
        tokens = self._tokens(item, job.query, limit=None)
        if len(tokens) <= self.limit:
            return tokens
        job.cut[index] = len(tokens)
        return shortened(tokens, self.limit, self._vocabulary.control)

    def step(self) -> Embedded | Fault | None:
        """Run one decode for the oldest job; return its result when it is complete."""
        job = self._jobs[0]
        try:
            self._decode_some(job)
        except _Refused as error:
            self._jobs.popleft()
            return error.fault
        except ValueError as error:
            self._jobs.popleft()
            return Fault(id=job.id, code="internal", message=f"llama.cpp could not embed the input: {error}.")
        if job.next_input < len(job.inputs):
            return None
        self._jobs.popleft()
        rows = [row / (np.linalg.norm(row) or 1.0) if job.normalize else row for row in job.vectors]
        if not all(np.isfinite(row).all() for row in rows):
            # NaN left in the cells would affect later inputs
            self._loaded.api.llama_memory_clear(self._memory, True)
            return Fault(id=job.id, code="not_finite", message="The model's output is not a number.")
        return Embedded(
            id=job.id,
            width=self.width,
            vectors=[row.astype("<f4").tobytes() for row in rows],
            token_counts=[len(tokens) for tokens in job.tokens],
            cut=job.cut,
        )

    def _decode_some(self, job: _Job) -> None:
        if job.quick and self._quick.wanted(len(job.inputs) - job.next_input) and self._embedded_quickly(job):
            return
        tokens = self._input(job, job.next_input)
        if len(tokens) > self._chunk:
            self._decode_chunk(job, tokens)
            return
        batch, first = self._batch, job.next_input
        batch.clear()
        count = 0
        # Attention is computed over the whole batch, so long inputs run alone.
        budget = max(len(tokens), min(SHARED, self._chunk))
        for index in range(first, min(first + MAX_SEQUENCES, len(job.inputs))):
            chunk = self._input(job, index)
            if len(chunk) > budget:
                break
            budget -= len(chunk)
            batch.add_embedded(chunk, 0, count)
            count += 1
        self._run()
        job.vectors.extend(self._row(seq_id) for seq_id in range(count))
        job.next_input += count
        self._loaded.api.llama_memory_clear(self._memory, False)

    def _embedded_quickly(self, job: _Job) -> bool:
        """Embed the next inputs in int8; False: llama.cpp must embed them."""
        first = job.next_input
        last = min(first + self._quick.texts_a_step, len(job.inputs))
        rows = self._quick.rows([self._input(job, index) for index in range(first, last)], self._alone)
        if rows is None:
            return False
        job.vectors.extend(rows)
        job.next_input = last
        return True

    def _alone(self, tokens: list[int]) -> Any:
        """Return the row of one text that fits into a decode."""
        self._batch.clear()
        self._batch.add_embedded(tokens, 0, 0)
        self._run()
        row = self._row(0)
        self._loaded.api.llama_memory_clear(self._memory, False)
        return row

    def _decode_chunk(self, job: _Job, tokens: list[int]) -> None:
        """Decode the next chunk of one long input: causal attention does not depend on later chunks."""
        chunk = tokens[job.done_tokens : job.done_tokens + self._chunk]
        self._batch.clear()
        self._batch.add_embedded(chunk, job.done_tokens, 0)
        self._run()
        row = self._row(0)
        if job.done_tokens == 0:
            job.vectors.append(row * len(chunk) if self._pooling == _POOL_MEAN else row)
        elif self._pooling == _POOL_MEAN:
            job.vectors[-1] += row * len(chunk)
        elif self._pooling != _POOL_CLS:  # the last token, or the score at it
            job.vectors[-1] = row
        job.done_tokens += len(chunk)
        if job.done_tokens == len(tokens):
            if self._pooling == _POOL_MEAN:
                job.vectors[-1] /= len(tokens)
            job.next_input += 1
            job.done_tokens = 0
            self._loaded.api.llama_memory_clear(self._memory, False)

    def _run(self) -> None:
        rows, began, used = self._batch.size, time.perf_counter(), time.process_time()
        # For a search query, threads would synchronize more than they compute.
        alone = rows < WIDE_ROWS and self._small and self._governor.threads > 1
        if alone:
            self._set_threads(1)
        code = self._batch.decode()
        if alone:
            self._set_threads(self._governor.threads)
        if code != 0:
            self._loaded.api.llama_memory_clear(self._memory, False)
            raise ValueError(f"llama_decode returned {code}")
        self._loaded.api.llama_synchronize(self._context)
        now = time.perf_counter()
        self._note_step(rows, now - began, time.process_time() - used, now)

    def _note_step(self, rows: int, seconds: float, cpu_s: float, now: float) -> None:
        """Use fewer threads while other programs use the cores: waiting for a slow thread costs far more."""
        if rows < WIDE_ROWS:
            return  # a search query is too short to measure
        before = self._governor.threads
        self._governor.note(seconds / rows, cpu_s / rows, now)
        if self._governor.threads != before:
            self._set_threads(self._governor.threads)

    def _set_threads(self, count: int) -> None:
        self._loaded.api.llama_set_n_threads(self._context, count, count)

    def _row(self, seq_id: int) -> Any:
        pointer = self._loaded.api.llama_get_embeddings_seq(self._context, seq_id)
        if not pointer:
            raise ValueError("no embedding came back")
        return np.ctypeslib.as_array(pointer, (self.width,)).astype(np.float64)


# Building and testing the graph takes 0.5 s of CPU time, which pays only with this many texts.
MIN_TEXTS: Final = 16
# The weights are in memory a second time, in 8 bits, and no memory estimate includes them.
MAX_BYTES: Final = 128 << 20
# Minimum cosine with llama.cpp's vector. Rows on disk are rounded to 8 bits too (log-archive.md, "Documents").
MIN_COSINE: Final = 0.98
# Maximum CPU time, as a fraction of llama.cpp's.
WORTH: Final = 0.8
ROUNDS: Final = 3
# Texts per thread and step. A new chat request waits for at most this many.
_TEXTS: Final = 2


class QuickChoice:
    """Embeds many texts in int8 if that is faster on this computer and gives nearly the same vectors."""

    def __init__(self, settings: LoadSettings, threads: int) -> None:
        self._path = Path(settings.path)
        self._threads = threads
        self._untried = (
            settings.embeddings
            and settings.repack
            and not (settings.devices or settings.n_gpu_layers or settings.lora)
            and self._path.is_file()
            and self._path.stat().st_size <= MAX_BYTES
        )
        self._texts: QuickTexts | None = None

    def wanted(self, num_left: int) -> bool:
        """Whether to embed this many texts in int8, or to test int8 with the first of them."""
        return self._texts is not None or (self._untried and num_left >= MIN_TEXTS)

    @property
    def texts_a_step(self) -> int:
        return _TEXTS * self._threads

    def rows(self, texts: list[list[int]], exact: Callable[[list[int]], Any]) -> list[Any] | None:
        """Return pooled rows, float64 of (embd,) each; None: llama.cpp must embed these and all later texts.

        `exact` returns llama.cpp's row of a text.
        """
        try:
            if self._untried:
                self._untried = False
                self._texts = self._measured(max(texts, key=len), exact)
            return None if self._texts is None else self._texts.many(texts)
        except NotQuick as error:
            self._texts = None
            sys.stderr.write(f"texts are embedded by llama.cpp: {error}\n")
            return None

    def _measured(self, text: list[int], exact: Callable[[list[int]], Any]) -> QuickTexts:
        """Load and test the int8 model. Raises: NotQuick: it is not faster, or its vectors differ."""
        texts = QuickTexts(self._path, self._threads)
        row, slow_s = _fastest(lambda: exact(text))
        quick, quick_s = _fastest(lambda: texts.many([text])[0])
        if row.shape != quick.shape:
            raise NotQuick(f"in 8 bits their vectors have {quick.size} numbers, not {row.size}")
        cosine = float(row @ quick / max(float(np.linalg.norm(row) * np.linalg.norm(quick)), 1e-12))
        took = f"{len(text)} tokens: {quick_s * 1000:.1f} ms of CPU in 8 bits, {slow_s * 1000:.1f} without"
        if not cosine >= MIN_COSINE:  # also rejects NaN
            raise NotQuick(f"in 8 bits their vectors differ (cosine {cosine:.3f})")
        if quick_s > WORTH * slow_s:
            raise NotQuick(took)
        sys.stderr.write(f"many texts are embedded by ONNX Runtime: {took}, cosine {cosine:.4f}\n")
        return texts


def _fastest(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result and the least CPU time of some rounds, after one warm-up."""
    result, seconds = work(), []
    for _ in range(ROUNDS):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return result, min(seconds)
