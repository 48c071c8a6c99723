"""Power meters of every kind, read from recorded files and answers; nothing is counted twice."""

import pytest

from devices.battery import MACOS_COMMAND, SUPPLIES, read_battery
from devices.doctor import diagnose, meter_summary
from devices.power import HWMON, POWERCAP, PowerMeters, meters, parts_w, whole_w
from devices.recording import FORMAT, RecordedHost
from devices.types import Device, Machine, Memory, SystemMemory

GPU, CARD = "0000:c3:00.0", "0000:01:00.0"


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def host(files, system="linux", **parts):
    return RecordedHost({"format": FORMAT, "system": system, "files": files, **parts})


def device(kind, pci, vendor="AMD"):
    return Device(pci, kind, vendor, vendor, "usable", Memory(), pci=pci)


def zone(number, name, energy):
    base = f"{POWERCAP}/intel-rapl:{number}"
    return {f"{base}/name": name, f"{base}/energy_uj": str(energy), f"{base}/max_energy_range_uj": "262143328850"}


def watts_after(first, later, devices=(), seconds=1.0):
    clock = Clock()
    recorded = host(first)
    reader = PowerMeters(recorded, devices, clock)
    reader.read()
    clock.now = seconds
    recorded._parts["files"].update(later)
    return parts_w(reader.read(), devices)


def test_packages_and_their_memory_are_added_up_and_parts_of_a_package_are_not():
    def files(joules):
        found = {
            **zone("0", "package-0", 1_000_000 * joules),
            **zone("0:0", "core", 900_000 * joules),
            **zone("0:1", "dram", 200_000 * joules),
            **zone("1", "package-1", 3_000_000 * joules),
        }
        mmio = f"{POWERCAP}/intel-rapl-mmio:0"
        return {**found, f"{mmio}/name": "package-0", f"{mmio}/energy_uj": str(1_000_000 * joules)}

    assert watts_after(files(0), files(10), seconds=2.0) == {"cpu": pytest.approx(21.0)}


def test_the_platform_is_the_whole_computer_and_its_parts_are_not_added_to_it():
    first, later = ({**zone("0", "package-0", 7 * n), **zone("1", "psys", 30 * n)} for n in (0, 1_000_000))
    parts = watts_after(first, later)
    assert parts == {"cpu": 7.0, "system": 30.0}
    assert whole_w(parts) == 30.0
    assert whole_w({"cpu": 7.0, CARD: 100.0}) == 107.0
    assert whole_w({}) is None


def test_an_integrated_gpu_is_within_the_package_and_a_card_is_beside_it():
    monitor = "/sys/bus/pci/devices/{}/hwmon/hwmon1/power1_average"
    own = {monitor.format(GPU): "20000000", monitor.format(CARD): "90000000"}
    both = (device("igpu", GPU), device("dgpu", CARD))
    first, later = ({**zone("0", "package-0", n), **own} for n in (0, 35_000_000))
    assert watts_after(first, later, both) == {"cpu": 35.0, CARD: 90.0}
    assert parts_w(PowerMeters(host(own), both).read(), both) == {GPU: 20.0, CARD: 90.0}


def test_a_monitor_tells_the_processor_only_where_rapl_does_not():
    base = f"{HWMON}/hwmon3"
    files = {f"{base}/name": "zenpower", f"{base}/power1_label": "SVI2_P_Core", f"{base}/power1_input": "12000000"}
    files |= {f"{base}/power2_label": "SVI2_P_SoC", f"{base}/power2_input": "3000000"}
    assert parts_w(PowerMeters(host(files), ()).read()) == {"cpu": 15.0}
    first, later = ({**files, **zone("0", "package-0", n)} for n in (0, 16_000_000))
    assert watts_after(first, later) == {"cpu": 16.0}


def test_nvidias_counter_is_believed_before_its_reading():
    clock, card = Clock(), device("dgpu", CARD, "NVIDIA")
    told = {"pci": "00000000:01:00.0", "power_mw": 200_000, "energy_mj": 1_000_000}
    recorded = host({}, api={"nvml": [told]})
    reader = PowerMeters(recorded, (card,), clock)
    assert parts_w(reader.read()) == {CARD: 200.0}
    clock.now = 4.0
    recorded._parts["api"]["nvml"] = [{**told, "energy_mj": 1_600_000}]
    assert parts_w(reader.read()) == {CARD: 150.0}


@pytest.mark.parametrize(
    ("files", "charge_wh", "full_wh", "watts"),
    [
        ({"energy_now": 25_000_000, "energy_full": 50_000_000, "power_now": 9_000_000}, 25, 50, 9),
        (
            {
                "charge_now": 2_000_000,
                "charge_full": 4_000_000,
                "voltage_min_design": 11_000_000,
                "voltage_now": 12_000_000,
                "current_now": "-1000000",
            },
            22,
            44,
            12,
        ),
    ],
)
def test_a_battery_in_watt_hours_and_in_ampere_hours(files, charge_wh, full_wh, watts):
    known = {"type": "Battery", "status": "Discharging", **files}
    mouse = {"type": "Battery", "scope": "Device", "status": "Discharging", "energy_now": 1}
    found = {f"{SUPPLIES}/BAT0/{k}": str(v) for k, v in known.items()}
    found |= {f"{SUPPLIES}/hidpp_battery_0/{k}": str(v) for k, v in mouse.items()}
    battery = read_battery(host(found))
    assert battery.discharging
    assert (battery.charge_j, battery.full_j) == (pytest.approx(3600 * charge_wh), pytest.approx(3600 * full_wh))
    assert battery.power_w == pytest.approx(watts)


def test_windows_and_macos_batteries():
    state = {"present": True, "discharging": True, "full_mwh": 50_000, "remaining_mwh": 20_000, "rate_mw": -8_500}
    windows = read_battery(host({}, "windows", api={"battery_state": state}))
    assert (windows.charge_frac, windows.power_w) == (0.4, 8.5)
    assert read_battery(host({}, "windows", api={"battery_state": {"present": False}})) is None
    listing = (
        '"AppleRawCurrentCapacity" = 2000\n"AppleRawMaxCapacity" = 4000\n"Voltage" = 12000\n'
        f'"InstantAmperage" = {(1 << 64) - 750}\n'
    )
    command = {" ".join(MACOS_COMMAND): {"returncode": 0, "stdout": listing}}
    macos = read_battery(host({}, "macos", commands=command))
    assert (macos.charge_frac, macos.power_w) == (0.5, 9.0)


def test_a_locked_meter_is_told_with_the_command_that_opens_it():
    base = f"{POWERCAP}/intel-rapl:0"
    recorded = host({f"{base}/name": "package-0"}, access={f"{base}/energy_uj": "denied"})
    (locked,) = meters(recorded, ())
    assert not locked.readable
    machine = Machine("linux", "6", "x86_64", "", "", SystemMemory(), (), meters=(locked,))
    assert "meter_locked" in {f.id for f in diagnose(machine)}
    assert "none that can be read" in meter_summary(machine)


def test_a_computer_without_meters_tells_none():
    assert meters(host({}), ()) == ()
    assert PowerMeters(host({}), ()).read() == ()
