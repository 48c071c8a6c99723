"""The ledger counts nothing twice, reserves nothing twice, and corrects predictions by measurements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from devices.errors import PoolExceeded
from devices.memory_ledger import AuditLog, DeviceBytes, Ledger, pool_of, pools
from devices.process_memory import process_memory
from devices.types import ProcessMemory
from tests.support.machines.machines import reports

GIB = 1 << 30
MACHINES = reports()
HALO = MACHINES["sh-flow-z13-linux-gtt96"]
IGPU = "0000:c3:00.0"
HYBRID = MACHINES["nv-hybrid-addw4"]


def ledger(machine, **kwargs):
    return Ledger(lambda: machine, **kwargs)


def held(anonymous=0, mapped=0):
    return ProcessMemory(anonymous + mapped, anonymous + mapped, anonymous, mapped)


@pytest.mark.parametrize("name", MACHINES)
def test_pools_never_exceed_what_is_installed(name):
    machine = MACHINES[name]
    found = pools(machine)
    vram = sum(p.capacity_bytes for p in found if p.kind == "vram")
    assert sum(p.capacity_bytes for p in found) <= (machine.memory.installed_bytes or 0) + vram
    assert all(0 <= p.free_bytes <= p.capacity_bytes for p in found)


def test_unified_memory_is_one_pool():
    """The GPU of a unified machine uses memory that the CPU could use."""
    book = ledger(HALO)
    before = book.available("cpu")
    book.reserve("model", {IGPU: DeviceBytes(40 * GIB)})
    carve_out = 4 * GIB - (128 << 20)
    assert before - book.available("cpu") == 40 * GIB - carve_out


def test_a_carve_out_is_used_before_system_memory():
    book = ledger(HALO)
    before = book.available("cpu")
    book.reserve("small", {IGPU: DeviceBytes(3 * GIB)})
    assert book.available("cpu") == before


def test_dedicated_memory_is_a_pool_of_its_own():
    book = ledger(HYBRID)
    before = book.available("cpu")
    book.reserve("model", {"0000:01:00.0": DeviceBytes(4 * GIB)})
    assert book.available("cpu") == before
    with pytest.raises(PoolExceeded) as refused:
        book.reserve("second", {"0000:01:00.0": DeviceBytes(4 * GIB)})
    assert refused.value.held == {"model": 4 * GIB}
    assert refused.value.available_bytes < 2 * GIB


def test_a_refused_load_changes_nothing():
    book = ledger(HYBRID)
    before = book.available("cpu")
    with pytest.raises(PoolExceeded):
        book.reserve("huge", {"cpu": DeviceBytes(500 * GIB)})
    assert book.available("cpu") == before
    assert book.reservations() == ()


def test_one_load_over_two_devices_is_refused_as_a_whole():
    book = ledger(HYBRID)
    with pytest.raises(PoolExceeded):
        book.reserve("split", {"cpu": DeviceBytes(GIB), "0000:01:00.0": DeviceBytes(50 * GIB)})
    assert book.reservations() == ()


def test_one_load_cannot_take_the_same_memory_through_two_devices():
    book = ledger(HALO)
    whole_gpu = DeviceBytes(book.available(IGPU))
    book.reserve("model", {IGPU: whole_gpu})
    left = book.available("cpu")
    book.release("model")
    with pytest.raises(PoolExceeded):
        book.reserve("split", {IGPU: whole_gpu, "cpu": DeviceBytes(left + GIB)})
    book.reserve("split", {IGPU: whole_gpu, "cpu": DeviceBytes(left)})


def test_the_gpu_cannot_take_more_than_its_drivers_ceiling():
    machine = MACHINES["sh-linux-halved"]
    igpu = next(d for d in machine.devices if d.kind == "igpu")
    lowered = replace(igpu, memory=replace(igpu.memory, shared_limit_bytes=8 * GIB, shared_used_bytes=0))
    machine = replace(machine, devices=tuple(lowered if d is igpu else d for d in machine.devices))
    book = ledger(machine)
    assert book.available(igpu.id) < 9 * GIB
    with pytest.raises(PoolExceeded):
        book.reserve("model", {igpu.id: DeviceBytes(10 * GIB)})


def test_a_replaced_reservation_is_not_counted_twice():
    book = ledger(HYBRID)
    book.reserve("model", {"cpu": DeviceBytes(10 * GIB)})
    once = book.available("cpu")
    book.reserve("model", {"cpu": DeviceBytes(10 * GIB)})
    assert book.available("cpu") == once


def test_what_a_runner_already_holds_is_not_subtracted_again():
    holding = {"bytes": 0}
    machine = [HYBRID]
    book = Ledger(lambda: machine[0], measure=lambda pid: held(anonymous=holding["bytes"]))
    before = book.available("cpu")
    book.reserve("model", {"cpu": DeviceBytes(6 * GIB)})
    book.attach("model", 4242)
    assert before - book.available("cpu") == 6 * GIB
    holding["bytes"] = 6 * GIB  # loaded: the system's own figure is lower by now
    memory = replace(HYBRID.memory, available_bytes=HYBRID.memory.available_bytes - 6 * GIB)
    machine[0] = replace(HYBRID, memory=memory)
    assert before - book.available("cpu") == 6 * GIB
    assert book.available("cpu", exclude="model") == before, "a load in its place has what it holds now"


def test_a_gpu_whose_free_memory_is_without_a_load_does_not_lose_it_again():
    machine, gpu = [HYBRID], "0000:01:00.0"
    book = Ledger(lambda: machine[0], measure=lambda pid: held(anonymous=GIB))
    before = book.available(gpu)
    book.reserve("model", {gpu: DeviceBytes(4 * GIB)})
    book.attach("model", 4242)
    assert before - book.available(gpu) == 4 * GIB, "it is being loaded"
    card = HYBRID.device(gpu)
    less = replace(card, memory=replace(card.memory, available_bytes=card.memory.available_bytes - 4 * GIB))
    machine[0] = replace(HYBRID, devices=tuple(less if d is card else d for d in HYBRID.devices))
    book.attach("model", 4242, held(anonymous=GIB))
    assert before - book.available(gpu) == 4 * GIB


def loaded_on(machine, gpu, num_bytes):
    """The machine after a load on its integrated GPU: less memory is free, and its driver reports more as used."""
    memory = gpu.memory
    carve_out = memory.dedicated_bytes - (memory.dedicated_used_bytes or 0)
    of_ram = max(0, num_bytes - carve_out)
    if memory.dedicated_used_bytes is not None:
        used = memory.dedicated_used_bytes + min(num_bytes, carve_out)
        memory = replace(memory, dedicated_used_bytes=used, shared_used_bytes=memory.shared_used_bytes + of_ram)
    changed = tuple(replace(d, memory=memory) if d is gpu else d for d in machine.devices)
    ram = replace(machine.memory, available_bytes=machine.memory.available_bytes - of_ram)
    return replace(machine, devices=changed, memory=ram)


def test_a_model_on_an_integrated_gpu_is_subtracted_once():
    """Its process shows none of its 40 GiB: they are the driver's, and are missing in the free memory already."""
    machine = [HALO]
    book = Ledger(lambda: machine[0], measure=lambda pid: held())
    before, whole = book.available("cpu"), book.available(IGPU)
    book.reserve("model", {IGPU: DeviceBytes(40 * GIB)})
    reserved = book.available("cpu"), book.available(IGPU)
    assert whole - reserved[1] == 40 * GIB
    machine[0] = loaded_on(HALO, HALO.device(IGPU), 40 * GIB)
    book.attach("model", 4242, held())
    assert (book.available("cpu"), book.available(IGPU)) == reserved
    in_its_place = book.available("cpu", exclude="model"), book.available(IGPU, exclude="model")
    assert in_its_place == (before, whole)
    book.reserve("second", {IGPU: DeviceBytes(30 * GIB)})
    assert book.available(IGPU, exclude="model") == whole - 30 * GIB


def test_two_loads_at_once_share_the_drivers_ceiling():
    igpu = HALO.device(IGPU)
    lowered = replace(igpu, memory=replace(igpu.memory, shared_limit_bytes=62 * GIB))
    book = ledger(replace(HALO, devices=tuple(lowered if d is igpu else d for d in HALO.devices)))
    book.reserve("first", {IGPU: DeviceBytes(40 * GIB)})
    with pytest.raises(PoolExceeded):
        book.reserve("second", {IGPU: DeviceBytes(40 * GIB)})


@pytest.mark.parametrize("name", ["sh-windows-dxgi-discrete", "arl-h-win"])
def test_where_no_driver_reports_what_is_used_a_loaded_model_stays_subtracted(name):
    """DXGI reports only the sizes of a GPU's memory."""
    machine = [MACHINES[name]]
    gpu = next(d for d in machine[0].devices if d.kind == "igpu")
    book = Ledger(lambda: machine[0], measure=lambda pid: held())
    whole = book.available(gpu.id)
    size = whole * 3 // 5
    book.reserve("model", {gpu.id: DeviceBytes(size)})
    machine[0] = loaded_on(machine[0], gpu, size)
    book.attach("model", 4242, held())
    with pytest.raises(PoolExceeded):
        book.reserve("second", {gpu.id: DeviceBytes(size)})
    assert book.available(gpu.id, exclude="model") == pytest.approx(whole, abs=GIB // 4)


def test_a_model_can_be_replaced_by_a_larger_one_on_its_card():
    """The card's free memory is without the model that is to be replaced, for example by one with more context."""
    machine, gpu = [HYBRID], "0000:01:00.0"
    book = Ledger(lambda: machine[0], measure=lambda pid: held(anonymous=GIB))
    whole = book.available(gpu)
    book.reserve("model", {gpu: DeviceBytes(4 * GIB)})
    card = HYBRID.device(gpu)
    less = replace(card, memory=replace(card.memory, available_bytes=card.memory.available_bytes - 4 * GIB))
    machine[0] = replace(HYBRID, devices=tuple(less if d is card else d for d in HYBRID.devices))
    book.attach("model", 4242, held(anonymous=GIB))
    assert book.available(gpu, exclude="model") == whole
    book.check({gpu: DeviceBytes(whole)}, exclude="model")


def test_mapped_weights_stay_counted_although_the_system_calls_them_available():
    book = ledger(HYBRID, measure=lambda pid: held(anonymous=GIB, mapped=5 * GIB))
    before = book.available("cpu")
    book.reserve("model", {"cpu": DeviceBytes(GIB, mapped_bytes=5 * GIB)})
    book.attach("model", 4242)
    book.record_measured("model")
    assert before - book.available("cpu") == 5 * GIB


def test_release_gives_everything_back():
    book = ledger(HALO)
    before = book.available(IGPU)
    book.reserve("model", {IGPU: DeviceBytes(20 * GIB), "cpu": DeviceBytes(GIB)})
    book.release("model")
    assert book.available(IGPU) == before


def test_an_unknown_device_has_no_memory():
    book = ledger(HYBRID)
    assert book.available("0000:99:00.0") == 0
    with pytest.raises(PoolExceeded):
        book.reserve("model", {"0000:99:00.0": DeviceBytes(1)})


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 80), st.booleans()), max_size=12))
def test_promises_never_exceed_the_machine(steps):
    book = ledger(HALO)
    capacity = sum(p.capacity_bytes for p in book.pools())
    for owner, gib, on_gpu in steps:
        try:
            book.reserve(owner, {IGPU if on_gpu else "cpu": DeviceBytes(gib * GIB)})
        except PoolExceeded:
            continue
        assert sum(r.predicted_bytes for r in book.reservations()) <= capacity


def test_measurements_correct_the_next_prediction():
    book = ledger(HYBRID, audits=AuditLog(None))
    for _ in range(8):
        predicted = round(10 * GIB * book.audits.correction("llama|cpu"))
        book.reserve("model", {"cpu": DeviceBytes(predicted)}, key="llama|cpu")
        audit = book.record_measured("model", held(anonymous=11 * GIB))
    assert abs(audit.error_frac) < 0.01
    assert abs(book.audits.correction("llama|cpu") - 1.1) < 0.01
    assert book.audits.correction("gemma3|cpu") == 1
    assert book.record_measured("model", held(anonymous=11 * GIB), cached_bytes=GIB).measured_bytes == 10 * GIB
    book.reserve("split", {"cpu": DeviceBytes(GIB), "0000:01:00.0": DeviceBytes(GIB)})
    assert book.record_measured("split", held(anonymous=GIB), {"0000:01:00.0": 2 * GIB}).measured_bytes == 3 * GIB
    book.attach("model", 4242)
    assert book.record_measured("model", held(anonymous=9 * GIB)).measured_bytes == 9 * GIB, "given, not measured"


def test_one_absurd_measurement_does_not_spoil_the_correction():
    log = AuditLog(None)
    log.add("model", "k", GIB, 100 * GIB, {})
    assert log.correction("k") <= 1.25
    log.add("model", "k", GIB, 1, {})
    assert log.correction("k") >= 1


def test_audits_survive_a_restart_and_a_damaged_line(tmp_path):
    path = tmp_path / "state" / "audits.jsonl"
    log = AuditLog(path)
    for i in range(20):
        log.add(f"model-{i}", "k", 100, 110, {"CPU": 90})
    with path.open("ab") as file:
        file.write(
            b'{"owner": 3\n\xff\xfe\n{"owner":"x","key":"k","predicted_bytes":0,"measured_bytes":1,"at":0}\n[]\n'
        )
    again = AuditLog(path)
    assert again.all()[-1].owner == "model-19"
    assert again.all()[-1].buffers == {"CPU": 90}
    assert again.correction("k") > 1


def test_two_servers_keep_each_others_audits(tmp_path):
    path = tmp_path / "state" / "audits.jsonl"
    one, other = AuditLog(path), AuditLog(path)
    one.add("a", "k", 100, 110, {})
    other.add("b", "k", 100, 110, {})
    assert [audit.owner for audit in AuditLog(path).all()] == ["a", "b"]
    assert other.correction("k") == AuditLog(path).correction("k") > one.correction("k")


def test_a_read_only_home_does_not_fail_a_load(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    AuditLog(blocked / "audits.jsonl").add("model", "k", 1, 1, {})


def test_memory_of_this_process_and_of_a_dead_one():
    import os

    own = process_memory(os.getpid())
    assert own.rss_bytes > own.anonymous_bytes > 0
    assert process_memory(2**22 - 7) is None


@pytest.mark.parametrize(
    ("kind", "pool"), [("remote", IGPU), ("dgpu", f"vram:{IGPU}"), ("igpu", f"carve_out:{IGPU}")]
)
def test_each_device_has_its_own_pool(kind, pool):
    assert pool_of(replace(HALO.device(IGPU), kind=kind)) == pool


def test_a_reservation_that_is_released_while_its_process_is_measured_stays_released():
    def measure(pid):
        book.release("model")
        return held(anonymous=GIB)

    book = ledger(HYBRID, measure=measure)
    book.reserve("model", {"cpu": DeviceBytes(2 * GIB)})
    book.attach("model", 4242)
    assert book.record_measured("model", moment="unload") is None
    assert book.reservations() == ()


def test_what_changes_while_a_process_is_measured_stays():
    changes = [3 * GIB]

    def measure(pid):
        while changes:
            book.refine("model", {"cpu": DeviceBytes(changes.pop())}, None, {})
        return held(anonymous=GIB)

    book = ledger(HYBRID, measure=measure)
    book.reserve("model", {"cpu": DeviceBytes(2 * GIB)})
    book.attach("model", 4242)
    book.record_measured("model", moment="unload")
    assert book._by_owner["model"].predicted_bytes == 3 * GIB


def test_the_numbers_of_an_earlier_process_change_no_new_reservation():
    book = ledger(HYBRID)
    book.reserve("model", {"cpu": DeviceBytes(2 * GIB)}, key="llama|cpu")
    book.attach("model", 4242)
    book.refine("model", {"cpu": DeviceBytes(GIB)}, None, {}, pid=4241)
    assert book.record_measured("model", held(anonymous=9 * GIB), pid=4241) is None
    (kept,) = book._by_owner.values()
    assert (kept.predicted_bytes, kept.measured) == (2 * GIB, None)
    book.refine("model", {"cpu": DeviceBytes(GIB)}, None, {}, pid=4242)
    assert book.record_measured("model", held(anonymous=GIB), pid=4242).predicted_bytes == GIB


def with_use(machine, device_id, *, ram=0, carve_out=0, mapped=0, vram=0):
    """The machine while a GPU's driver holds these bytes more."""
    device, memory = machine.device(device_id), machine.device(device_id).memory
    used = replace(
        memory,
        dedicated_used_bytes=None
        if memory.dedicated_used_bytes is None
        else memory.dedicated_used_bytes + carve_out,
        shared_used_bytes=None if memory.shared_used_bytes is None else memory.shared_used_bytes + mapped,
        available_bytes=None if memory.available_bytes is None else memory.available_bytes - vram,
    )
    devices = tuple(replace(device, memory=used) if d is device else d for d in machine.devices)
    left = replace(machine.memory, available_bytes=machine.memory.available_bytes - ram)
    return replace(machine, devices=devices, memory=left)


@pytest.mark.parametrize("device", ["cpu", "0000:01:00.0"])
def test_a_second_context_of_a_process_is_counted_once(device):
    """Before it is created, it is reserved; then its memory is the process's, or the card's."""
    machine, own = [HYBRID], [3 * GIB]
    book = Ledger(lambda: machine[0], measure=lambda pid: held(anonymous=own[0]))
    before = book.available(device)
    book.reserve("model", {"cpu": DeviceBytes(2 * GIB)})
    own[0] = 2 * GIB
    machine[0] = with_use(HYBRID, "0000:01:00.0", ram=2 * GIB)
    book.attach("model", 4242, held(anonymous=2 * GIB))
    book.reserve("model (deterministic)", {device: DeviceBytes(GIB)})
    lost = GIB if device != "cpu" else 3 * GIB
    assert before - book.available(device) == lost
    if device == "cpu":
        own[0], machine[0] = 3 * GIB, with_use(HYBRID, "0000:01:00.0", ram=3 * GIB)
    else:
        machine[0] = with_use(machine[0], device, vram=GIB)
    book.attach_to("model (deterministic)", "model")
    assert before - book.available(device) == lost
    if device == "cpu":
        assert before - book.available("cpu", exclude="model") == GIB
    assert [row.measured is not None for row in book.reservations()] == [True, False], "one process, one figure"
    book.release("model (deterministic)")
    book.attach_to("model (deterministic)", "model")
    assert [row.owner for row in book.reservations()] == ["model"]


def test_memory_that_gpus_map_is_not_of_other_programs():
    book = ledger(HALO, measure=lambda pid: held(anonymous=GIB))
    book.reserve("model", {"cpu": DeviceBytes(GIB), IGPU: DeviceBytes(40 * GIB)})
    book.attach("model", 4242, held(anonymous=GIB))
    carve_out = 4 * GIB - (128 << 20)
    assert book.ram_in_use(HALO) == 41 * GIB - carve_out
    book.release("model")
    assert book.ram_in_use(HALO) == 0
