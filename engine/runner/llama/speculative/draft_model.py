"""A second, smaller model with the same vocabulary that drafts tokens for the first."""

from dataclasses import dataclass, field
from typing import Any, Final

from engine.runner.llama.cache.prefix_index import Key
from engine.runner.llama.cache.resize import resize
from engine.runner.llama.native import log
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.model import LoadedModel, LoadFailed
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.load_limits import DRAFT_CHUNK, MAX_DRAFTING, draft_settings
from engine.runner.protocol import LoadSettings

# Vocabularies of one family differ in unused entries at the end. Source: llama.cpp, common/speculative.cpp.
MAX_SIZE_DIFFERENCE: Final = 128


@dataclass
class _Slot:
    """The draft model's state for one request; the first `agreed` of its tokens are known to be the request's."""

    owner: int = -1
    tokens: list[int] = field(default_factory=list)
    agreed: int = 0
    key: Key = ()
    last_used: int = 0


class DraftModel(ModelDrafter):
    """Owns the draft model's context. All calls come from the scheduler's thread."""

    def __init__(self, loaded: LoadedModel, n_vocab: int) -> None:
        super().__init__(Logits(loaded), n_vocab)
        self._loaded = loaded
        self._batch = Batch(loaded)
        self._slots = [_Slot() for _ in range(min(MAX_DRAFTING, loaded.settings.n_parallel))]
        self._clock = 0

    @classmethod
    def load(cls, api: Any, settings: LoadSettings, target: LlamaVocabulary) -> "DraftModel":
        """Load `settings.draft_path` in addition to its target.

        Raises: LoadFailed: not a model, another vocabulary, or a state that cannot be rolled back.
        """
        own_settings = draft_settings(settings)
        log.begin("the draft model", own_settings.path)
        try:
            loaded = llama_model.load(api, own_settings, lambda _fraction: True, spare_outputs=0)
        except LoadFailed as error:
            raise type(error)(f"the draft model {own_settings.path}: {error}") from error
        problem = difference(target, LlamaVocabulary(api, loaded.vocab))
        if problem is None and not loaded.keeps_partial:
            problem = "its state cannot step back, which a draft model must"
        if problem is not None:
            loaded.close()
            raise LoadFailed(f"{own_settings.path} cannot draft for this model: {problem}")
        llama_model.warm_up(loaded)
        return cls(loaded, target.size)

    def resize(self, n_ctx: int) -> None:
        """Resize the context; computed states are preserved."""
        resize(self._loaded, n_ctx, len(self._slots) * n_ctx)

    def propose(
        self, owner: int, tokens: list[int], length: int, key: Key = (), *, forced: bool = False
    ) -> list[int]:
        """See `ModelDrafter.propose`; empty while the request's prompt is still being read."""
        slot = self._slot(owner, key)
        keep = slot.agreed
        while keep < min(len(slot.tokens), len(tokens) - 1) and slot.tokens[keep] == tokens[keep]:
            keep += 1
        if not self._cut(slot, keep):
            return []
        missing = tokens[keep:]
        if len(missing) > DRAFT_CHUNK or len(tokens) + length > self._loaded.n_ctx:
            if len(tokens) + length <= self._loaded.n_ctx:
                self._read(slot, missing[:DRAFT_CHUNK], last=False)
            return []
        if not self._read(slot, missing, last=True):
            return []
        return self._draft(length, lambda token: self._go_on(slot, token), forced=forced)

    def _go_on(self, slot: _Slot, token: int) -> bool:
        """Decode a draft token, which the target has not accepted yet."""
        self._batch.clear()
        self._batch.add(token, len(slot.tokens), self._slots.index(slot))
        return self._decode(slot, [token])

    def _slot(self, owner: int, key: Key) -> _Slot:
        self._clock += 1
        slot = next((s for s in self._slots if s.owner == owner), None)
        if slot is None:
            slot = min(self._slots, key=lambda s: s.last_used)
            slot.owner, slot.agreed = owner, 0  # its content may still be a prefix of the new text
            if slot.key != key:
                self._reset(slot)
                slot.key = key
        slot.last_used = self._clock
        return slot

    def _cut(self, slot: _Slot, keep: int) -> bool:
        slot.agreed = keep
        if keep < len(slot.tokens):
            if not self._loaded.api.llama_memory_seq_rm(self._loaded.memory, self._slots.index(slot), keep, -1):
                return self._reset(slot)
            del slot.tokens[keep:]
        return True

    def _reset(self, slot: _Slot) -> bool:
        self._loaded.api.llama_memory_seq_rm(self._loaded.memory, self._slots.index(slot), -1, -1)
        slot.tokens, slot.agreed = [], 0
        return False

    def _read(self, slot: _Slot, tokens: list[int], *, last: bool) -> bool:
        self._batch.clear()
        self._batch.add_prompt(tokens, len(slot.tokens), self._slots.index(slot), last=last)
        done = self._decode(slot, tokens)
        slot.agreed = len(slot.tokens)
        return done

    def _decode(self, slot: _Slot, tokens: list[int]) -> bool:
        if self._batch.decode() != 0:
            return self._reset(slot)
        slot.tokens += tokens
        return True


def difference(target: LlamaVocabulary, draft: LlamaVocabulary) -> str | None:
    """Return why the vocabularies are incompatible; None if they match."""
    if abs(target.size - draft.size) > MAX_SIZE_DIFFERENCE:
        return f"its vocabulary has {draft.size} tokens, this model's {target.size}"
    both = zip(target.pieces, draft.pieces, strict=False)
    for token, (ours, theirs) in enumerate(both):
        if ours != theirs:
            return f"token {token} is {theirs!r} there and {ours!r} here"
    return None
