"""When an NPU gets work, for every kind of model, and what that is expected to cost and to save."""

from typing import Final

import msgspec

from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.message_catalog.reasons import Reason, because
from engine.placement.types import Overrides

# Watts above idle while a model answers, NPU and integrated GPU. Source: FastFlowLM on Ryzen AI Max 395, users'
# reports (11.5-14.4 W), and llama.cpp's Vulkan run on the same computer (52 W); see the reference of devices.
_PUBLISHED_W: Final = {"AMD": (13, 52)}
# The prompt by which the time to the first token is judged, and the wait after which people turn to something
# else. Source: Miller (1968), Card et al. (1991): ten seconds hold attention.
USUAL_PROMPT: Final = 1000
PATIENCE_S: Final = 10.0
QUIET: Final = because("quiet")
ON_BATTERY: Final = because("on_battery")


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
    reasons: tuple[Reason, ...]


def why_npu(overrides: Overrides, *, igpu_busy: bool, side_work: bool) -> Reason | None:
    """Why an NPU should get this model, or nothing. `side_work`: embeddings, speech and the like, not a chat."""
    if overrides.mode == "quiet":
        return QUIET
    if overrides.on_battery:
        return ON_BATTERY
    if igpu_busy:
        return because("side_work_beside_gpu" if side_work else "small_model_beside_gpu")
    return None


def judge(why: Reason, vendor: str, npu: Offer, other: Offer | None) -> Verdict:
    """The rule behind `why`: energy that was measured here decides, then how long the first token takes.

    Who wants it quiet waits; who saves energy or shares the GPU does not wait longer than PATIENCE_S.
    """
    energy = why_power(vendor, npu, other)
    waits = _first_token(npu, other)
    measured = npu.tokens_per_joule, other.tokens_per_joule if other else None
    if why == ON_BATTERY and measured[0] and measured[1] and measured[0] <= measured[1]:
        return Verdict(False, (energy,))
    if (
        why != QUIET
        and npu.first_token_s > PATIENCE_S
        and (other is None or other.first_token_s < npu.first_token_s)
    ):
        return Verdict(False, (waits,))
    return Verdict(True, (why, energy, waits))


def why_power(vendor: str, npu: Offer, other: Offer | None = None) -> Reason:
    """The energy of a placement on an NPU: what meters found here, else what is published."""
    if npu.tokens_per_joule is None:
        return expected_power(vendor)
    if other is None or other.tokens_per_joule is None:
        return because("npu_energy", tokens_per_joule=npu.tokens_per_joule)
    return because(
        "npu_energy_beside",
        tokens_per_joule=npu.tokens_per_joule,
        other=other.tokens_per_joule,
        device=other.name,
    )


def expected_power(vendor: str) -> Reason:
    """The energy of a placement on an NPU, as long as no meter here has told."""
    if vendor not in _PUBLISHED_W:
        return because("npu_power_unpublished")
    npu, gpu = _PUBLISHED_W[vendor]
    return because("npu_power_published", npu_w=npu, gpu_w=gpu)


def busy_igpu(machine: Machine, ledger: Ledger, owner: str = "") -> bool:
    """A model, not `owner`'s, is loaded on the integrated GPU."""
    igpus = {d.id for d in machine.devices if d.kind == "igpu"}
    return any(device in igpus for held in ledger.reservations() if held.owner != owner for device in held.amounts)


def _first_token(npu: Offer, other: Offer | None) -> Reason:
    if other is None:
        return because("npu_first_token", tokens=USUAL_PROMPT, npu=_seconds(npu))
    return because(
        "npu_first_token_beside", tokens=USUAL_PROMPT, npu=_seconds(npu), other=_seconds(other), device=other.name
    )


def _seconds(offer: Offer) -> Reason:
    is_finite = offer.first_token_s < float("inf")
    return because("seconds", seconds=offer.first_token_s) if is_finite else because("unknown_time")
