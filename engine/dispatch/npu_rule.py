"""When an NPU gets work, for every kind of model, and what that is expected to save."""

from typing import Final

from engine.dispatch.types import Wish

# Watts above idle while a model answers, NPU and integrated GPU. Source: FastFlowLM on Ryzen AI Max 395, users'
# reports (11.5-14.4 W), and llama.cpp's Vulkan run on the same computer (52 W); see the reference of devices.
_PUBLISHED_W: Final = {"AMD": (13, 52)}


def why_npu(wish: Wish, *, igpu_busy: bool, side_work: bool) -> str:
    """Why an NPU should get this model, or nothing. `side_work`: embeddings, speech and the like, not a chat."""
    if wish.mode == "quiet":
        return "quiet"
    if wish.on_battery:
        return "on battery"
    if igpu_busy and side_work:
        return "side work beside the integrated GPU, which chats"
    return ""


def expected_power(vendor: str) -> str:
    """The energy sentence of a placement on an NPU, as long as no meter here has told."""
    if vendor not in _PUBLISHED_W:
        return "on NPU: less power than the GPU expected; no figure is published, not measured here"
    npu, gpu = _PUBLISHED_W[vendor]
    return f"on NPU: {npu} W instead of {gpu} W expected (published), not measured here"
