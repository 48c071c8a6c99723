"""What autotune found, stored by machine, driver and build, by the model's shape and by context length."""

import time
from pathlib import Path

import msgspec

from engine.core.json_store import JsonStore
from engine.message_catalog.reasons import Reason, because
from engine.placement.measurements.tuning import Choice, Goal, Knobs, TuneReport
from engine.placement.openvino import is_openvino
from engine.placement.types import Overrides, Placement
from engine.runner.protocol import LoadSettings

MAX_ENTRIES = 1000
# Below this it would read "0 % faster".
MIN_REPORTED_GAIN = 0.005


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """One result: the knobs, and what a turn of `prompt_tokens` took with them and with the defaults (seconds).

    Tokens per joule are known where energy was the goal.
    """

    machine_key: str
    shape_key: str
    prompt_tokens: int
    knobs: Knobs
    turn_s: float
    default_turn_s: float | None
    prefill_tok_s: float
    decode_tok_s: float
    choices: tuple[Choice, ...]
    measured_at: float
    stand_in: bool = False
    goal: Goal = "speed"
    tokens_per_joule: float | None = None
    default_tokens_per_joule: float | None = None

    @property
    def key(self) -> tuple[str, str, int, str]:
        """One result is stored for each."""
        return self.machine_key, self.shape_key, self.prompt_tokens, self.goal

    def reasons(self) -> tuple[Reason, ...]:
        """For the dispatch card: what was measured, and each choice with its measurement."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.measured_at))
        took = because(
            "turn_took",
            tokens=self.prompt_tokens,
            turn_s=self.turn_s,
            prefill_tok_s=self.prefill_tok_s,
            decode_tok_s=self.decode_tok_s,
        )
        first = because("tuned", day=day, took=took, gain=self._gained())
        if self.goal == "energy" and self.tokens_per_joule is not None:
            each = self.tokens_per_joule
            first = because("tuned_for_energy", day=day, tokens_per_joule=each, gain=self._saved(), took=took)
        return (first, *(choice.fact() for choice in self.choices))

    def _gained(self) -> Reason:
        if self.default_turn_s is None:
            return because("defaults_fail")
        gain = self.default_turn_s / self.turn_s - 1 if self.turn_s > 0 else 0.0
        return because("gain_faster", gain=gain) if gain >= MIN_REPORTED_GAIN else because("gain_none")

    def _saved(self) -> Reason:
        if not self.tokens_per_joule or not self.default_tokens_per_joule:
            return because("defaults_fail")
        gain = self.tokens_per_joule / self.default_tokens_per_joule - 1
        return because("gain_saved", gain=gain) if gain >= MIN_REPORTED_GAIN else because("gain_saved_none")


def tuned_of(report: TuneReport, machine_key: str, shape_key: str) -> Tuned:
    """The stored part of a report."""
    return Tuned(
        machine_key=machine_key,
        shape_key=shape_key,
        prompt_tokens=report.prompt_tokens,
        knobs=report.best,
        turn_s=report.turn_s,
        default_turn_s=report.default_turn_s,
        prefill_tok_s=report.prefill_tok_s,
        decode_tok_s=report.decode_tok_s,
        choices=report.choices,
        measured_at=report.measured_at,
        stand_in=report.stand_in,
        goal=report.goal,
        tokens_per_joule=report.tokens_per_joule,
        default_tokens_per_joule=report.default_tokens_per_joule,
    )


class TunedStore:
    """A JSON file of results, read again when it changed: the terminal tunes while a server runs."""

    def __init__(self, path: Path) -> None:
        self._store = JsonStore(path, list[Tuned], list)

    def get(self, machine_key: str, shape_key: str, n_ctx: int) -> Tuned | None:
        """The result for the longest prompt that a context of `n_ctx` holds, else for the shortest one measured.

        Of two goals that counts which was tuned for last.
        """
        found = [t for t in self._store.get() if t.machine_key == machine_key and t.shape_key == shape_key]
        newest = max(found, key=lambda t: t.measured_at, default=None)
        found = [t for t in found if newest is not None and t.goal == newest.goal]
        held = [t for t in found if t.prompt_tokens <= n_ctx]
        if held:
            return max(held, key=lambda t: t.prompt_tokens)
        return min(found, key=lambda t: t.prompt_tokens, default=None)

    def put(self, tuned: Tuned) -> None:
        """Keep a result; it replaces the one of the same key. Raises: OSError: the disk cannot be written."""
        self._store.change(lambda old: [*(t for t in old if t.key != tuned.key), tuned][-MAX_ENTRIES:])


def tuned_settings(tuned: Tuned, settings: LoadSettings, overrides: Overrides) -> LoadSettings:
    """The knobs on top of dispatched settings; what the user asked for stays as it is."""
    knobs = tuned.knobs
    if overrides.type_k:
        keeps = settings.type_k in ("f32", "f16", "bf16")
        flash = knobs.flash_attn if keeps else settings.flash_attn
        knobs = msgspec.structs.replace(knobs, kv_type=settings.type_k, flash_attn=flash)
    if overrides.mode == "quiet" or overrides.on_battery:
        knobs = msgspec.structs.replace(knobs, n_threads=min(knobs.n_threads, settings.n_threads))
    if overrides.n_threads is not None:
        knobs = msgspec.structs.replace(knobs, n_threads=overrides.n_threads)
    if overrides.n_gpu_layers is not None:
        knobs = msgspec.structs.replace(knobs, n_gpu_layers=settings.n_gpu_layers)
    return knobs.apply(settings)


def pinned_elsewhere(tuned: Tuned, placement: Placement, overrides: Overrides) -> bool:
    """The user, or a mode of little power, wants another device than the one that was tuned for."""
    chosen = bool(overrides.device) or is_openvino(placement.settings)
    return chosen and tuned.knobs.devices != placement.settings.devices
