"""Adds drafts to steps: chooses the drafter and the number of tokens, and checks whether it pays."""

import sys
import time
from collections.abc import Callable
from typing import Final

from engine.runner.generation.draft_length import Acceptance, AssumedCost, StepCost, best_draft_length
from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.model import LoadedModel, LoadFailed
from engine.runner.llama.sequence import LlamaSequence
from engine.runner.llama.speculative.model_drafter import ModelDrafter
from engine.runner.llama.speculative.mtp import MtpHead
from engine.runner.load_limits import MAX_DRAFT, MAX_DRAFTING

# Draft length of a draft model that is requested regardless of cost.
FORCED_LENGTH: Final = 7
# Assumed cost of a draft token relative to a step of one row, where measurements are not used: a tenth of the
# model's size is a large draft model.
ASSUMED_DRAFT_TOKEN: Final = 0.15
# Initial acceptance rate of tokens that a grammar forces: models seldom split words differently.
GRAMMAR_PRIOR: Final = 0.95

# Gets the number of draft tokens and the number of accepted ones.
Recorder = Callable[[int, int], None]


class Speculation:
    """Adds drafts to batches and learns from their acceptance. All calls come from the scheduler's thread."""

    def __init__(self, loaded: LoadedModel, cost: StepCost, draft_model: ModelDrafter | None) -> None:
        self._measured = self._cost = cost
        self._assumed = AssumedCost()
        self._draft_model = draft_model
        self._by_model = Acceptance()
        self._by_grammar = Acceptance(GRAMMAR_PRIOR)
        self._steady_id: int | None = None
        most = min(loaded.settings.max_draft, MAX_DRAFT)
        self._longest_alone = most if loaded.keeps_partial else min(most, loaded.max_rollback)
        self._longest_together = most if loaded.keeps_partial else 0
        self._longest = 0
        self._rows = 0
        self._drafting: list[tuple[LlamaSequence, int, Recorder]] = []

    def detach(self) -> None:
        """Prepare for a replacement of the target's context."""
        if isinstance(self._draft_model, MtpHead):
            self._draft_model.close()

    def attach(self, n_ctx: int) -> None:
        """Follow the target's new context of `n_ctx` tokens. A drafter without enough memory stops drafting."""
        try:
            if self._draft_model is not None:
                self._draft_model.resize(n_ctx)
        except LoadFailed as error:
            sys.stderr.write(f"drafts do not follow the larger context: {error}\n")
            if isinstance(self._draft_model, MtpHead):
                self._draft_model = None

    def begin(self, generating: int, *, alone: bool) -> None:
        """Start a step with `generating` sequences; `alone`: one sequence, and no other is in prefill."""
        self._rows = generating
        self._longest = self._longest_alone if alone else self._longest_together
        self._drafting.clear()

    def extend(self, batch: Batch, sequence: LlamaSequence) -> None:
        """Append a draft after the sequence's newest token in the batch, if it pays."""
        if not self._longest or not 0 < self._rows <= MAX_DRAFTING or not sequence.may_draft:
            return
        self._judge(sequence)
        room = min(sequence.limit - len(sequence.tokens) - 1, self._longest, batch.room)
        draft, recorder = self._draft(sequence, room, forced=sequence.request.speculate is True)
        if not draft:
            sequence.balance.skipped((self._cost.seconds(self._rows) or 0.0) / self._rows)
            return
        assert sequence.cache is not None
        for i, token in enumerate(draft):
            batch.add(token, sequence.position(len(sequence.tokens) + i), sequence.cache.seq_id)
        sequence.draft = draft
        self._drafting.append((sequence, len(draft), recorder))

    def _judge(self, sequence: LlamaSequence) -> None:
        """Choose cost and acceptance: drafts of a steady request must depend on its own text alone."""
        self._cost = self._assumed if sequence.steady else self._measured
        if sequence.steady and sequence.id != self._steady_id:
            self._steady_id = sequence.id
            self._by_model, self._by_grammar = Acceptance(), Acceptance(GRAMMAR_PRIOR)

    def _draft(self, sequence: LlamaSequence, room: int, *, forced: bool) -> tuple[list[int], Recorder]:
        """Return the tokens that the grammar fixes, else the better of two drafts; and its result's recorder."""
        if sequence.constraint is not None and (draft := self._grammar_draft(sequence, room, forced=forced)):
            return draft, self._by_grammar.note
        drafter, cost = sequence.drafter, self._cost
        if not forced and not sequence.balance.allows:
            return [], drafter.record
        draft = drafter.propose(room)
        if draft and not forced:
            draft = draft[: best_draft_length(cost, self._rows, len(draft), drafter.acceptance, 0.0)]
            if not draft:
                drafter.acceptance.decay()
        model = self._draft_model
        if (
            model is None
            or sequence.media is not None
            or room <= 0
            or (draft and drafter.acceptance.rate >= self._by_model.rate)
        ):
            return draft, drafter.record
        limit = min(room, FORCED_LENGTH)
        if not forced:
            token_s = ASSUMED_DRAFT_TOKEN if sequence.steady else model.draft_token_s
            limit = best_draft_length(cost, self._rows, room, self._by_model, token_s)
            if not limit:
                self._by_model.decay()
        if not limit:
            return draft, drafter.record
        started = time.monotonic()
        drafted = model.propose(sequence.id, sequence.tokens, limit, sequence.key, forced=forced)
        if drafted:
            return drafted, self._by_model.note
        spent_s = ASSUMED_DRAFT_TOKEN * limit if sequence.steady else time.monotonic() - started
        sequence.balance.rejected(spent_s)
        return draft, drafter.record

    def _grammar_draft(self, sequence: LlamaSequence, room: int, *, forced: bool) -> list[int]:
        if sequence.constraint is None or not (draft := sequence.constraint.forced(room)):
            return []
        length = best_draft_length(self._cost, self._rows, len(draft), self._by_grammar, 0.0)
        if not length and not forced:
            self._by_grammar.decay()
            return []
        return draft[: length or None]

    def follow(self, batch: Batch, running: list[LlamaSequence]) -> None:
        """Let the MTP head process the final tokens of a step."""
        head = self._draft_model
        if not isinstance(head, MtpHead) or len(running) > MAX_DRAFTING:
            return
        spans = batch.spans()
        for sequence in running:
            if sequence.cache is None or not sequence.may_draft or sequence.cache.seq_id not in spans:
                continue
            start, first, count = spans[sequence.cache.seq_id]
            settled = min(count, len(sequence.cache.tokens) - start)  # rejected tokens have been removed
            if settled > 0:
                head.follow(sequence.id, sequence.tokens, start, settled, (first, batch.size), sequence.key)

    def record(self, sequence: LlamaSequence, accepted: int) -> None:
        """Record that the first `accepted` tokens of a draft were right. Call before new tokens are observed."""
        _, proposed, recorder = next(entry for entry in self._drafting if entry[0] is sequence)
        sequence.proposed += proposed
        sequence.accepted += accepted
        recorder(proposed, accepted)
        sequence.last_accepted = accepted

    def update_balances(self, step_s: float) -> None:
        """Update each text's gain or loss from the duration of the step, drafting included."""
        plain = self._cost.seconds(self._rows) if self._drafting else None
        if plain is None:
            return
        if self._drafting[0][0].steady:  # it runs alone
            step_s = self._cost.seconds(self._rows + self._drafting[0][1]) or plain
        total = sum(length for _, length, _ in self._drafting)
        for sequence, length, _ in self._drafting:
            extra = (step_s - plain) * length / total
            sequence.balance.note(plain / self._rows, plain / self._rows + extra, sequence.last_accepted)
