"""Every remedy suits the system it is given for: a table of backends, and all recorded machines."""

import re

import pytest
from msgspec.structs import replace

from app.cli.main import COMMANDS
from devices import install_hints
from devices.backends.backend_probe import try_backends
from devices.backends.libraries import BACKENDS
from devices.doctor import diagnose
from devices.merge import merged
from devices.recording import RecordedHost
from devices.report import recorded_report
from installers.packs.recipes import RECIPES
from tests.support.machines.machines import machines

RECORDINGS = machines()
# Words that mean nothing on the system, or would do harm there.
FOREIGN = {
    "windows": re.compile(r"\bsudo\b|\bapt\b|\bdnf\b|rm -r |python3 |modprobe|usermod|mesa-|/dev/|xcode"),
    "macos": re.compile(r"\bsudo\b|\bapt\b|\bdnf\b|modprobe|usermod|mesa-|rmdir|\bpy start|Windows"),
    "linux": re.compile(r"rmdir|\bpy start|xcode|Windows Update"),
}
NAMED = re.compile(r"`([^`]+)`")


def all_remedies(name):
    """Texts of doctor and the device list on a recorded machine where only the CPU backend is installed."""
    machine = recorded_report(RecordedHost({**RECORDINGS[name], "backends": []}))
    reports = try_backends(machine, None, trials=())
    machine = merged(replace(machine, backends=reports))
    found = [finding.fix for finding in diagnose(machine)]
    found += [device.fix_hint or "" for device in machine.devices]
    return machine.system, [text for text in found if text]


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_no_recorded_machine_gets_another_systems_remedy(name):
    system, found = all_remedies(name)
    assert found
    for text in found:
        assert not FOREIGN[system].search(text), f"{system}: {text}"


def test_only_packs_with_a_recipe_are_named_and_none_as_if_it_could_be_fetched():
    # Parts for the CPU are included in the program.
    assert {name for name in RECIPES if not name.startswith(("cpu-", "tiles-"))} == install_hints.PACKS
    for frozen in (False, True):
        arm = install_hints.missing_backend("vulkan", "windows", "ARM64", frozen=frozen)
        assert arm.startswith("There is no kernel pack vulkan-windows-arm64 yet")
        known = install_hints.missing_backend("rocm", "linux", "x86_64", frozen=frozen)
        assert known.startswith("No kernel pack is published yet.")
        for system in ("linux", "windows"):
            bundled = install_hints.missing_backend("vulkan", system, "AMD64", frozen=frozen)
            assert f"`tessera kernels install vulkan-{system}-x86_64`" in bundled
            assert "FILE" not in bundled


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_every_command_of_ours_exists(name):
    for text in all_remedies(name)[1]:
        for command in NAMED.findall(text):
            if command.startswith("tessera "):
                assert command.split()[1] in COMMANDS


@pytest.mark.parametrize(
    ("backend", "system"), [(b.name, system) for b in BACKENDS for system in sorted(b.systems)]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_table(backend, system, frozen):
    text = install_hints.missing_backend(backend, system, "x86_64", frozen=frozen)
    assert not FOREIGN[system].search(text), text
    if frozen:
        assert "start.py" not in text
    driver = install_hints.no_device(backend, system)
    assert driver is None or not FOREIGN[system].search(driver), driver


@pytest.mark.parametrize(
    ("backend", "system", "words"),
    [
        ("vulkan", "windows", "tessera kernels install vulkan-windows-x86_64"),
        ("vulkan", "linux", "tessera kernels install vulkan-linux-x86_64"),
        ("cuda", "linux", "CMAKE_ARGS=-DGGML_CUDA=ON python3 start.py"),
        ("cuda", "windows", "set CMAKE_ARGS=-DGGML_CUDA=ON"),
        ("rocm", "linux", "-DGGML_HIP=ON"),
        ("metal", "macos", "xcode-select --install"),
        ("cpu", "windows", "py start.py"),
    ],
)
def test_what_is_said(backend, system, words):
    assert words in install_hints.missing_backend(backend, system, "AMD64", frozen=False)


def test_windows_is_not_promised_a_build_of_vulkan():
    assert "start.py" not in install_hints.missing_backend("vulkan", "windows", "AMD64", frozen=False)
