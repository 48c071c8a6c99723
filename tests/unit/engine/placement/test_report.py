"""Reports whether a model fits, and which settings would help if not."""

import msgspec
import pytest
from msgspec.structs import replace

from devices.detect import inventory
from devices.memory_ledger import DeviceBytes, Ledger
from devices.recording import RecordedHost
from engine.core.errors import NotEnoughMemory
from engine.message_catalog import command, sentence
from engine.placement.fit_report import claim, fit_report, refusal
from engine.placement.placer import read_shape
from engine.runner.protocol import LoadSettings
from tests.support.machines.machines import machines
from tests.support.models.shapes import scaled, write_hollow

MIB = 1 << 20
RECORDING = machines()["vm-firecracker"]


def machine(available_mib):
    """A machine of 8 GiB with this much memory for models in addition to the reserve of 2 GiB."""
    free = (available_mib + 2048) * 1024
    files = {**RECORDING["files"], "/proc/meminfo": f"MemTotal: {8 << 20} kB\nMemAvailable: {free} kB\n"}
    return inventory(RecordedHost({**RECORDING, "files": files}))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    shape = scaled("llama", vocab=2000, layers=8, kv_heads=8)
    return str(write_hollow(tmp_path_factory.mktemp("fit") / "m.gguf", shape))


def judged(path, settings, here):
    return fit_report("m", read_shape(path), settings, here, Ledger(lambda: here))


def report(path, available_mib, **changes):
    at = LoadSettings(path=path, n_ctx=32768, n_parallel=4, **changes)
    return judged(path, at, machine(available_mib))


def test_what_fits_gives_nothing_up(path):
    found = report(path, 3000)
    assert found.fits
    assert found.fit_options == ()
    assert found.largest_context == 32768


def test_a_smaller_cache_and_a_better_quantization_are_offered_together(path):
    """With 400 MiB no preset fits with a 16-bit cache, and an 8-bit cache alone is too large."""
    found = {way.change.kind: way for way in report(path, 400).fit_options}
    way = found["option_quantize_kv"]
    assert way.change.values["mix"] == "Q4_K_M"
    assert command(way.change).endswith("MiB, then --kv q8_0")
    assert "option_quantize" not in found
    assert "option_quantize_kv" not in {w.change.kind for w in report(path, 600).fit_options}  # a cache is enough


def test_what_does_not_fit_names_ways_that_do(path):
    found = report(path, 600)
    assert not found.fits
    available = found.available_bytes["cpu"]
    assert found.need.device_bytes("cpu") > available
    kinds = [way.kind for way in found.fit_options]
    assert kinds[0] == "kv"
    assert {"kv", "context"} <= set(kinds)
    assert [way.cost for way in found.fit_options] == sorted(way.cost for way in found.fit_options)
    for way in found.fit_options:
        assert way.needed_bytes <= available
        assert way.saved_bytes == found.need.total_bytes - way.needed_bytes


def test_one_request_at_a_time_is_offered_where_that_is_enough(path):
    several = LoadSettings(path=path, n_ctx=8192, n_parallel=2, kv_cells=32768)
    single, here = replace(several, n_parallel=1, kv_cells=0), machine(600)
    (way,) = (way for way in judged(path, several, here).fit_options if way.kind == "parallel")
    assert way.needed_bytes == judged(path, single, here).need.total_bytes
    alone = judged(path, replace(several, n_parallel=1), here)
    assert not alone.fits
    assert "parallel" not in {way.kind for way in alone.fit_options}


def test_no_context_is_offered_that_it_was_not_trained_for(path):
    found = judged(path, LoadSettings(path=path, n_ctx=1 << 20, n_parallel=4), machine(5000))
    assert not found.fits
    contexts = [way.change.values["n_ctx"] for way in found.fit_options if "n_ctx" in way.change.values]
    assert contexts == [32768]


def test_the_ways_out_really_fit(path):
    found = report(path, 450)
    for way in found.fit_options:
        flags = command(way.change).split()
        words = dict(zip(flags[::2], flags[1::2], strict=True))
        at = LoadSettings(
            path=path, n_ctx=int(words.get("--ctx", 32768)), n_parallel=int(words.get("--parallel", 4))
        )
        if "--kv" in words:
            at = msgspec.structs.replace(at, type_k=words["--kv"], type_v=words["--kv"], flash_attn="on")
        assert judged(path, at, machine(450)).fits


def test_the_largest_context_is_the_largest(path):
    found = report(path, 450)
    at = LoadSettings(path=path, n_ctx=found.largest_context, n_parallel=4)
    assert judged(path, at, machine(450)).fits
    more = msgspec.structs.replace(at, n_ctx=found.largest_context + 256)
    assert not judged(path, more, machine(450)).fits


def test_nothing_helps_on_a_machine_without_memory(path):
    found = report(path, 20)
    assert not found.fits
    assert found.largest_context == 0
    assert found.fit_options == ()


def test_other_models_are_offered_to_be_stopped(path):
    here = machine(1500)
    book = Ledger(lambda: here)
    book.reserve("other", {"cpu": DeviceBytes(1200 * MIB)})
    at = LoadSettings(path=path, n_ctx=32768, n_parallel=4)
    found = fit_report("m", read_shape(path), at, here, book)
    assert not found.fits
    assert any(way.kind == "unload" and "other" in sentence(way.change) for way in found.fit_options)


def test_a_refusal_carries_the_numbers_and_three_ways(path):
    found = report(path, 600)
    error = refusal(found, {"cpu": "AMD EPYC"})
    assert error.needed_bytes == found.need.device_bytes("cpu")
    assert error.available_bytes == found.available_bytes["cpu"]
    assert error.device == "AMD EPYC"
    assert len(error.options) == 3
    assert "--kv q8_0" in command(error.options[0])
    assert error.facts()["options"][0] == "use KV cache type q8_0 instead of f16 (--kv q8_0)"
    assert str(error).endswith(f"To make it fit: {'; '.join(error.facts()['options'])}.")


def test_memory_that_came_back_while_the_refusal_was_written_is_used(path):
    """A refusal never names less than what is available."""
    free = [machine(600), machine(3000)]
    book = Ledger(lambda: free.pop(0) if len(free) > 1 else free[0])
    at = LoadSettings(path=path, n_ctx=32768, n_parallel=4)
    need = report(path, 3000).need
    claim("m", need, "k", machine(600), book, lambda: fit_report("m", read_shape(path), at, machine(3000), book))
    assert [r.owner for r in book.reservations()] == ["m"]
    free[:] = [machine(600)]
    with pytest.raises(NotEnoughMemory) as refused:  # removed again
        claim("n", need, "k", machine(600), book, lambda: report(path, 9000))
    assert refused.value.needed_bytes > refused.value.available_bytes


def test_a_smaller_mix_is_sized_tensor_by_tensor(path):
    found = report(path, 650)
    mix = [way for way in found.fit_options if way.kind == "quantization"]
    assert all(0 < way.saved_bytes < found.need.part_bytes("weights") for way in mix)
    left = [max(1, (read_shape(path).file_bytes - way.saved_bytes) // MIB) for way in mix]
    assert [way.change.values["budget_mib"] for way in mix] == left


def test_an_address_space_limit_counts_as_memory(path):
    limited = RecordedHost({**RECORDING, "api": {**RECORDING["api"], "address_space_limit": 600 * MIB}})
    here = inventory(limited)
    assert here.memory.available_bytes == 216 * MIB
    found = judged(path, LoadSettings(path=path, n_ctx=32768), here)
    assert not found.fits
    roomy = replace(here, memory=replace(here.memory, available_bytes=None))
    assert not judged(path, LoadSettings(path=path, n_ctx=32768), roomy).fits
