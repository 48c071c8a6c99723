"""Which of the offered models is recommended first."""

import pytest
from msgspec.structs import replace

from engine.library.default_model import memory_bytes
from engine.library.recommended_models import propose, recommend, starters
from tests.support.machines.machines import reports
from tests.support.machines.opened_machines import opened

BY_ID = {starter.id: starter for starter in starters()}


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        # The largest that generates at reading speed, neither the fastest nor the largest.
        ({"qwen3-1.7b": 17.0, "qwen3-8b": 6.0, "qwen3-30b-a3b": 2.0}, ("qwen3-8b", "reading_speed")),
        ({"qwen3-1.7b": 4.0, "qwen3-8b": 1.0}, ("qwen3-1.7b", "quickest")),
        ({"qwen3-8b": 0.0, "qwen3-1.7b": 0.0}, ("qwen3-1.7b", "smallest")),
        # A model that only writes code is not suited to a first chat, however fast it is.
        ({"qwen2.5-coder-1.5b": 40.0, "qwen3-0.6b": 9.0}, ("qwen3-0.6b", "reading_speed")),
        ({"qwen2.5-coder-1.5b": 40.0}, ("qwen2.5-coder-1.5b", "reading_speed")),
        ({}, ("", "")),
    ],
)
def test_the_one_to_begin_with(offered, expected):
    assert recommend([(BY_ID[name], speed) for name, speed in offered.items()]) == expected


@pytest.mark.parametrize(
    ("name", "gib", "largest"),
    [
        ("sh-linux-carveout64", 101, "qwen3.6-35b-a3b"),  # 64 of 128 GiB are set aside for the GPU
        ("nv-hybrid-addw4", 24, None),  # 31 GiB, and 6 on a card
        ("container-capped", 67, None),  # a limit of 84 GiB on a computer with more
    ],
)
def test_models_are_recommended_for_the_memory_that_they_can_use(name, gib, largest):
    """The GPU's part of a unified memory counts, and a container's limit."""
    machine = opened(name) if name != "container-capped" else reports()[name]
    assert memory_bytes(machine) >> 30 == gib
    if largest is not None:
        proposals = propose(memory_bytes(machine))
        assert largest in {proposal.starter.id for proposal in proposals}


def test_only_a_gpu_that_can_run_models_counts():
    machine = opened("sh-linux-carveout64")
    closed = replace(machine, devices=tuple(replace(d, state="no_permission") for d in machine.devices))
    assert memory_bytes(closed) == int(machine.memory.total_bytes * 0.8)
