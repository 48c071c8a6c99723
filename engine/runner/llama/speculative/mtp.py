"""Drafts from hidden rows with the model's own head for the token after the next (multi-token prediction, MTP)."""

import ctypes
import importlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.native.batch import Logits
from engine.runner.llama.native.model import LoadedModel, LoadFailed, mtp_context
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.load_limits import MAX_DRAFTING


@dataclass
class _Slot:
    """The head's state for one request: it has processed the positions below `filled`.

    `waiting` are (token, hidden row of the previous position) of the next positions, not processed yet. `hidden` is
    the row for the token at `at`. `tokens` is the request's own list, valid up to `at`.
    """

    owner: int = -1
    tokens: list[int] = field(default_factory=list)
    filled: int = 0
    waiting: list[tuple[int, Any]] = field(default_factory=list)
    hidden: Any = None
    at: int = -1
    key: Key = ()
    last_used: int = 0

    @property
    def end(self) -> int:
        """The next position."""
        return self.filled + len(self.waiting)


class MtpHead(ModelDrafter):
    """Owns the head's context on its target's weights. All calls come from the scheduler's thread.

    Each position of the head takes a token and the target's hidden row of the previous position. The head
    processes the target's decodes (`follow`) and then drafts from its own hidden states (`propose`).
    """

    def __init__(self, target: LoadedModel) -> None:
        """Raises: LoadFailed: the file has no such head, or a state that cannot be rolled back."""
        api = target.api
        if not api.llama_model_n_layer_nextn(target.model):
            raise LoadFailed("the file has no head for the token after the next one")
        if not target.keeps_partial and not target.max_rollback:
            raise LoadFailed("its state cannot step back, so there is no speculation")
        # C++ functions without a C interface; the package knows each compiler's name mangling.
        self._ext = importlib.import_module("llama_cpp.llama_cpp_ext")
        self._api, self._target = api, target
        self._n_embd = int(api.llama_model_n_embd(target.model))
        self._clock = 0
        self._last = 0
        super().__init__(self._open(), target.n_vocab)

    def _open(self) -> Logits:
        """Create the head's context for the target's; return its logits."""
        api, target = self._api, self._target
        self._slots = [_Slot() for _ in range(min(MAX_DRAFTING, target.settings.n_parallel))]
        self._context = mtp_context(target, len(self._slots))
        self._most = int(api.llama_n_batch(self._context)) - 1  # and the newest token
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_ext_init(self._context)
        self._ext.llama_set_embeddings_nextn(target.context, True, False)
        self._ext.llama_set_embeddings_nextn(self._context, True, True)
        return Logits(replace(target, context=self._context))

    def resize(self, n_ctx: int) -> None:
        """Create the context again after the target's; each request starts again at its next token."""
        del n_ctx  # the target has it
        self._logits = self._open()

    def close(self) -> None:
        """Free the context; call this before the target's is freed."""
        self._api.llama_batch_ext_free(self._batch)
        self._api.llama_free(self._context)

    def follow(
        self, owner: int, tokens: list[int], start: int, count: int, rows: tuple[int, int], key: Key = ()
    ) -> None:
        """Process the `count` tokens of a request that the target has decoded from `start` on.

        `rows` are the first of them in the batch, and the size of the batch. A state computed for a request of
        another `key` is not used.
        """
        slot = self._slot(owner, tokens, start, key)
        slot.tokens = tokens
        first, size = rows
        pointer = self._ext.llama_get_embeddings_nextn(self._target.context)
        if not pointer:
            self._reset(slot, 0)
            return
        hidden = np.ctypeslib.as_array(pointer, (size, self._n_embd))[first : first + count].copy()
        if not np.isfinite(hidden).all():  # it would invalidate the drafts of all other requests in this cache
            self._reset(slot, 0)
            return
        before = slot.hidden if slot.at == start else np.zeros(self._n_embd, np.float32)
        entries = list(zip(tokens[start : start + count], [before, *hidden[:-1]], strict=True))
        if start == slot.end - 1 and slot.at == start:
            entries = entries[1:]  # it drafted from this token, with the same hidden row
        elif start < slot.end:
            self._cut(slot, start)
        elif start > slot.end:
            self._reset(slot, start)  # a part was not followed
        slot.waiting += entries
        slot.hidden, slot.at = hidden[-1], start + count
        while len(slot.waiting) > self._most:  # a draft must not wait for a whole prompt
            if not self._read(slot, self._most):
                return

    def propose(
        self, owner: int, tokens: list[int], length: int, key: Key = (), *, forced: bool = False
    ) -> list[int]:
        """See `ModelDrafter.propose`; empty if the head did not follow the request."""
        del key  # `follow` gave the request its slot
        slot = next((s for s in self._slots if s.owner == owner), None)
        position = len(tokens) - 1
        if slot is None or slot.at != position or len(tokens) + length > self._target.n_ctx:
            return []
        # the newest token is already processed if the step after the last draft token failed
        self._cut(slot, position)
        slot.waiting.append((tokens[-1], slot.hidden))
        if not self._read(slot, len(slot.waiting)):
            return []
        draft = self._draft(length, lambda token: self._go_on(slot, token), forced=forced)
        self._cut(slot, position + 1)  # draft tokens are decoded again, with hidden rows of the target
        return draft

    def _go_on(self, slot: _Slot, token: int) -> bool:
        """Decode a draft token, with the head's own hidden row of the previous position."""
        pointer = self._ext.llama_get_embeddings_nextn_ith(self._context, self._last)
        slot.waiting.append((token, np.ctypeslib.as_array(pointer, (self._n_embd,)).copy()))
        return self._read(slot, 1)

    def _slot(self, owner: int, tokens: list[int], start: int, key: Key) -> _Slot:
        """Return the request's slot; a new request continues in a slot that has processed its beginning."""
        self._clock += 1
        slot = next((s for s in self._slots if s.owner == owner), None)
        if slot is None:
            alike = [s for s in self._slots if s.key == key and s.at >= start > 0]
            matching = [s for s in alike if s.tokens[:start] == tokens[:start]]
            slot = min(matching or self._slots, key=lambda s: s.last_used)
            if not matching:
                self._reset(slot, 0)
            slot.owner, slot.key = owner, key
        slot.last_used = self._clock
        return slot

    def _cut(self, slot: _Slot, length: int) -> None:
        """Discard positions from `length` on."""
        self._api.llama_memory_seq_rm(self._memory, self._slots.index(slot), length, -1)
        slot.waiting = slot.waiting[: max(0, length - slot.filled)]
        slot.filled = min(slot.filled, length)

    def _reset(self, slot: _Slot, start: int) -> None:
        """Empty the slot and start at a position."""
        self._api.llama_memory_seq_rm(self._memory, self._slots.index(slot), -1, -1)
        slot.filled, slot.waiting, slot.hidden, slot.at = start, [], None, -1

    def _read(self, slot: _Slot, count: int) -> bool:
        """Decode the first `count` waiting entries; the last one's logits and hidden row are then available."""
        api, batch, seq_id = self._api, self._batch, self._slots.index(slot)
        entries, slot.waiting = slot.waiting[:count], slot.waiting[count:]
        api.llama_batch_ext_clear(batch)
        hidden_rows = [np.ascontiguousarray(hidden, np.float32) for _, hidden in entries]
        for i, (token, _) in enumerate(entries):
            if api.llama_batch_ext_add_token(batch, seq_id, token) != i:
                self._reset(slot, 0)
                return False
            row = hidden_rows[i].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            api.llama_batch_ext_set_embd_token(batch, i, api.llama_embd(row, 1, self._n_embd))
            api.llama_batch_ext_set_pos(batch, i, ctypes.byref(ctypes.c_int32(slot.filled + i)))
            api.llama_batch_ext_set_output_logits(batch, i, i == count - 1)
        if api.llama_process(self._context, api.LLAMA_PROCESS_TYPE_DECODE, batch) != 0:
            self._reset(slot, 0)
            return False
        slot.filled += count
        self._last = count - 1
        return True
