"""When an NPU gets work, for every kind of model, and what that is expected to cost and to save."""

from typing import Final

import msgspec

from devices.memory import Ledger
from devices.types import Machine
from engine.dispatch.types import Overrides

# Watts above idle while a model answers, NPU and integrated GPU. Source: FastFlowLM on Ryzen AI Max 395, users'
# reports (11.5-14.4 W), and llama.cpp's Vulkan run on the same computer (52 W); see the reference of devices.
_PUBLISHED_W: Final = {"AMD": (13, 52)}
# The prompt by which the time to the first token is judged, and the wait after which people turn to something
# else. Source: Miller (1968), Card et al. (1991): ten seconds hold attention.
USUAL_PROMPT: Final = 1000
PATIENCE_S: Final = 10.0
QUIET: Final = "quiet"


class Offer(msgspec.Struct, frozen=True):
    """A place for a model: tokens of a prompt it reads a second, and what a meter here found of it, if one did."""

    name: str
    prefill_tok_s: float
    tokens_per_joule: float | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token behind a usual prompt."""
        return USUAL_PROMPT / self.prefill_tok_s if self.prefill_tok_s > 0 else float("inf")


class Verdict(msgspec.Struct, frozen=True):
    """Whether the NPU gets the model, and why or why not."""

    take: bool
    reasons: tuple[str, ...]


def why_npu(overrides: Overrides, *, igpu_busy: bool, side_work: bool) -> str:
    """Why an NPU should get this model, or nothing. `side_work`: embeddings, speech and the like, not a chat."""
    if overrides.mode == "quiet":
        return QUIET
    if overrides.on_battery:
        return "on battery"
    if igpu_busy:
        return f"{'side work' if side_work else 'a small model'} beside the integrated GPU, which is busy"
    return ""


def judge(why: str, vendor: str, npu: Offer, other: Offer | None) -> Verdict:
    """The rule behind `why`: energy that was measured here decides, then how long the first token takes.

    Who wants it quiet waits; who saves energy or shares the GPU does not wait longer than PATIENCE_S.
    """
    energy = power_words(vendor, npu, other)
    waits = _first_token_words(npu, other)
    measured = npu.tokens_per_joule, other.tokens_per_joule if other else None
    if why == "on battery" and measured[0] and measured[1] and measured[0] <= measured[1]:
        return Verdict(False, (energy,))
    if (
        why != QUIET
        and npu.first_token_s > PATIENCE_S
        and (other is None or other.first_token_s < npu.first_token_s)
    ):
        return Verdict(False, (waits,))
    return Verdict(True, (why, energy, waits))


def power_words(vendor: str, npu: Offer, other: Offer | None = None) -> str:
    """The energy sentence of a placement on an NPU: what meters found here, else what is published."""
    if npu.tokens_per_joule is None:
        return expected_power(vendor)
    told = f"on NPU: {npu.tokens_per_joule:.3g} tokens per joule measured here"
    if other is None or other.tokens_per_joule is None:
        return told
    return f"{told}, {other.tokens_per_joule:.3g} on {other.name}"


def expected_power(vendor: str) -> str:
    """The energy sentence of a placement on an NPU, as long as no meter here has told."""
    if vendor not in _PUBLISHED_W:
        return "on NPU: less power than the GPU expected; no figure is published, not measured here"
    npu, gpu = _PUBLISHED_W[vendor]
    return f"on NPU: {npu} W instead of {gpu} W expected (published), not measured here"


def busy_igpu(machine: Machine, ledger: Ledger, owner: str = "") -> bool:
    """A model, not `owner`'s, is loaded on the integrated GPU."""
    igpus = {d.id for d in machine.devices if d.kind == "igpu"}
    return any(device in igpus for held in ledger.reservations() if held.owner != owner for device in held.amounts)


def _first_token_words(npu: Offer, other: Offer | None) -> str:
    told = f"first token of a prompt of {USUAL_PROMPT:,} tokens after about {_seconds(npu)} there"
    return f"{told}, {_seconds(other)} on {other.name} (expected)" if other else f"{told} (expected)"


def _seconds(offer: Offer) -> str:
    return f"{offer.first_token_s:.1f} s" if offer.first_token_s < float("inf") else "an unknown time"
