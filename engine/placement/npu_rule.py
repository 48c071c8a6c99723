"""The rule by which an NPU gets a model of any kind, with expected cost and savings."""

from typing import Final

import msgspec

from devices.memory_ledger import Ledger
from devices.types import Machine
from engine.message_catalog.reasons import Reason, because
from engine.placement.types import PlacementLimits

# Watts above idle while a model generates, NPU and integrated GPU. Source: FastFlowLM on Ryzen AI Max 395, users'
# reports (11.5-14.4 W), and llama.cpp's Vulkan run on the same computer (52 W); see the reference of devices.
_PUBLISHED_W: Final = {"AMD": (13, 52)}
# Prompt length for the time to the first token, and the wait after which people turn to something else. Source:
# Miller (1968), Card et al. (1991): ten seconds hold attention.
USUAL_PROMPT: Final = 1000
PATIENCE_S: Final = 10.0
QUIET: Final = because("quiet")
ON_BATTERY: Final = because("on_battery")


class Offer(msgspec.Struct, frozen=True):
    """A place for a model: prefill tokens/s, and tokens per joule if measured here."""

    name: str
    prefill_tok_s: float
    tokens_per_joule: float | None = None

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token after a usual prompt."""
        return USUAL_PROMPT / self.prefill_tok_s if self.prefill_tok_s > 0 else float("inf")


class NpuDecision(msgspec.Struct, frozen=True):
    """Whether the NPU gets the model, and the reasons."""

    take: bool
    reasons: tuple[Reason, ...]


def npu_reason(overrides: PlacementLimits, *, igpu_busy: bool, side_work: bool) -> Reason | None:
    """Why an NPU should get this model, or None. `side_work`: embeddings, speech and similar, not a chat."""
    if overrides.mode == "quiet":
        return QUIET
    if overrides.on_battery:
        return ON_BATTERY
    if igpu_busy:
        return because("side_work_beside_gpu" if side_work else "small_model_beside_gpu")
    return None


def judge(why: Reason, vendor: str, npu: Offer, other: Offer | None) -> NpuDecision:
    """Decide for the reason `why`: energy measured here decides, then the time to the first token.

    In quiet mode any wait is accepted. To save energy or share the GPU, the wait is at most PATIENCE_S.
    """
    energy = why_power(vendor, npu, other)
    waits = _first_token(npu, other)
    measured = npu.tokens_per_joule, other.tokens_per_joule if other else None
    if why == ON_BATTERY and measured[0] and measured[1] and measured[0] <= measured[1]:
        return NpuDecision(False, (energy,))
    if (
        why != QUIET
        and npu.first_token_s > PATIENCE_S
        and (other is None or other.first_token_s < npu.first_token_s)
    ):
        return NpuDecision(False, (waits,))
    return NpuDecision(True, (why, energy, waits))


def why_power(vendor: str, npu: Offer, other: Offer | None = None) -> Reason:
    """The energy of a placement on an NPU: measured here, else published."""
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
    """The published energy of a placement on an NPU, until a meter here has measured it."""
    if vendor not in _PUBLISHED_W:
        return because("npu_power_unpublished")
    npu, gpu = _PUBLISHED_W[vendor]
    return because("npu_power_published", npu_w=npu, gpu_w=gpu)


def busy_igpu(machine: Machine, ledger: Ledger, owner: str = "") -> bool:
    """Whether a model other than `owner`'s is loaded on the integrated GPU."""
    igpus = {d.id for d in machine.devices if d.kind == "igpu"}
    return any(device in igpus for row in ledger.reservations() if row.owner != owner for device in row.amounts)


def _first_token(npu: Offer, other: Offer | None) -> Reason:
    if other is None:
        return because("npu_first_token", tokens=USUAL_PROMPT, npu=_seconds(npu))
    return because(
        "npu_first_token_beside", tokens=USUAL_PROMPT, npu=_seconds(npu), other=_seconds(other), device=other.name
    )


def _seconds(offer: Offer) -> Reason:
    is_finite = offer.first_token_s < float("inf")
    return because("seconds", seconds=offer.first_token_s) if is_finite else because("unknown_time")
