"""Memory that loads reserve for speculative decoding."""

from bisect import bisect_left

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replaced

from devices.memory_ledger import Ledger
from engine.placement.fallbacks import next_fallback
from engine.placement.history import PlacementHistory
from engine.placement.load_settings import COPIES_BYTES, MAX_ROLLBACK, with_speculation
from engine.placement.placer import read_shape
from engine.placement.steps import place
from engine.placement.types import PlacementLimits
from engine.runner.load_limits import rollback
from engine.runner.protocol import LoadSettings
from tests.support.machines.machines import reports
from tests.support.models.architectures import ARCHITECTURES, write_architecture

HALO = reports()["sh-linux-amdvlk-vs-rocm"]


def base(**changes):
    return LoadSettings(path="m.gguf", n_ctx=4096, n_batch=2048, **changes)


def shape_of(tmp_path, name):
    return read_shape(str(write_architecture(tmp_path / "m.gguf", ARCHITECTURES[name])))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Qwen 3.5", MAX_ROLLBACK), ("LFM2", MAX_ROLLBACK), ("Mamba 2", 0), ("Llama, Mistral", 0)],
)
def test_states_that_can_be_taken_back_are_copied_and_counted(name, expected, tmp_path):
    shape = shape_of(tmp_path, name)

    def placed(**changes):
        book, memory = Ledger(lambda: HALO), PlacementHistory(None)
        return place(shape, base(**changes), PlacementLimits(device="cpu"), HALO, book, memory)

    found, plain = placed(), placed(max_draft=0)
    assert found.settings.max_rollback == expected
    assert plain.settings.max_rollback == 0
    assert found.need.part_bytes("recurrent") == (1 + expected) * plain.need.part_bytes("recurrent")
    assert placed(embeddings=True).settings.max_rollback == 0


def test_copies_stay_within_their_share(tmp_path):
    shape = shape_of(tmp_path, "Qwen 3.5")
    states = [layer for layer in shape.layers if layer.state_bytes]
    share = COPIES_BYTES // len(states)
    wide = tuple(replaced(layer, state_bytes=share if layer.state_bytes else 0) for layer in shape.layers)
    large = replaced(shape, layers=wide)
    assert with_speculation(base(n_parallel=1), large).max_rollback == 1
    assert with_speculation(base(n_parallel=2), large) == base(n_parallel=2)
    assert with_speculation(base(n_parallel=1), replaced(large, file_bytes=24 * COPIES_BYTES)).max_rollback == 3


def test_a_head_of_a_hybrid_needs_copies(tmp_path):
    shape = replaced(shape_of(tmp_path, "Qwen 3.5"), has_head=True)
    assert with_speculation(base(), shape).mtp
    assert not with_speculation(base(), replaced(shape, architecture="qwen3next")).mtp
    assert not with_speculation(base(draft_path="d.gguf"), shape).mtp


def test_what_does_not_fit_with_copies_is_loaded_without(tmp_path):
    shape = shape_of(tmp_path, "Qwen 3.5")
    states = [layer for layer in shape.layers if layer.state_bytes]
    gib = 1 << 30
    wide = tuple(replaced(la, state_bytes=gib // 64 // len(states) if la.state_bytes else 0) for la in shape.layers)
    large = replaced(shape, layers=wide)

    def rollback_with(available):
        machine = replace(HALO, memory=replace(HALO.memory, available_bytes=available))
        found = place(
            large,
            base(),
            PlacementLimits(device="cpu"),
            machine,
            Ledger(lambda: machine),
            PlacementHistory(None),
        )
        return found.fits, found.settings.max_rollback

    sizes = range(gib, HALO.memory.total_bytes, gib // 64)
    least = sizes[bisect_left(sizes, 1, key=lambda n: rollback_with(n)[0])]
    near = [rollback_with(least + n * gib // 64) for n in range(-1, 40)]
    fitting = [count for fits, count in near if fits]
    assert fitting[0] == 0
    assert fitting[-1] == MAX_ROLLBACK


def test_without_guesses_is_the_first_thing_to_try_when_a_load_fails():
    fallback = next_fallback(base(max_rollback=4), HALO, ())
    assert fallback is not None
    assert fallback.settings == base()


def test_a_step_holds_what_can_be_taken_back():
    settings = base(max_rollback=4)
    assert [rollback(replaced(settings, n_ubatch=n)) for n in (1, 2, 3, 6, 512)] == [0, 0, 1, 4, 4]
