"""The doctor lists the worst finding first, each with a remedy."""

import copy
import json
import os
import re

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from app.cli import doctor as doctor_command
from app.cli.main import cli
from devices import environment
from devices.backends.cpu_kernels import NO_INSTRUCTIONS
from devices.distribution import parsed
from devices.doctor import build_summary, diagnose
from devices.host_real import RealHost
from devices.kernel_packs.store import PackStore
from devices.llama_cpp_versions.store import VersionStore
from devices.memory_ledger import Ledger
from devices.merge import merged
from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import BackendDevice, BackendReport
from engine.core.paths import user_paths
from engine.message_catalog.reasons import because
from tests.support.machines.machines import machines, reports

RECORDINGS = machines()
GIB = 1 << 30
RANK = {"error": 0, "warning": 1, "advice": 2}


def examined(name, *backends):
    machine = reports()[name]
    return diagnose(replace(machine, backends=(*machine.backends, *backends)))


@pytest.mark.parametrize("name", RECORDINGS)
def test_findings_are_ordered_distinct_and_mendable(name):
    found = examined(name)
    assert [RANK[f.severity] for f in found] == sorted(RANK[f.severity] for f in found)
    assert len({(f.id, f.device) for f in found}) == len(found)
    assert all(f.title and f.fix for f in found)


def ids(found):
    return {f.id for f in found}


def test_what_is_wrong_with_known_machines():
    assert "amd_iommu_off" in ids(examined("sh-framework-desktop-linux"))
    assert "kernel_too_old_for_gfx1151" in ids(examined("sh-linux-overcommit"))
    assert "device_failed" in ids(examined("sh-linux-driver-failed"))
    assert "device_driver_missing" in ids(examined("ptl-nuc16-no-driver"))
    assert "gtt_at_default" in ids(examined("sh-linux-amdvlk-vs-rocm"))
    assert "memory_limited" in ids(examined("container-capped"))


HALO = "sh-framework-desktop-linux"
WATCHDOG = "/sys/module/amdgpu/parameters/lockup_timeout"
NODE = "/sys/class/kfd/kfd/topology/nodes/1/properties"
FIRMWARE = "/sys/kernel/debug/dri/1/amdgpu_firmware_info"
MES = "VCE feature version: 0, firmware version: 0x00000000\nMES feature version: 1, firmware version: 0x000000"
FROZEN = "[drm] REG_WAIT timeout 1us * 100000 tries - optc35_disable_crtc"
ROCM = "/opt/rocm/.info/version"


def constructed(files=(), *, env=None, access=(), dmesg="", kernel="", base=HALO):
    """Findings by id of a recording with these artificial changes."""
    recording = copy.deepcopy(RECORDINGS[base])
    recording["files"] |= dict(files)
    recording["env"] = env or {}
    recording.setdefault("access", {}).update(dict.fromkeys(access, "ok"))
    recording.setdefault("commands", {})["dmesg"] = {"returncode": 0, "stdout": dmesg}
    if kernel:
        recording["api"]["kernel"] = kernel
    return {finding.id: finding for finding in diagnose(recorded_report(RecordedHost(recording)))}


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        ("gpu_watchdog_short", {"files": {WATCHDOG: "2000"}}),
        ("gpu_watchdog_short", {"files": {WATCHDOG: "10000,60000,2000,10000"}}),
        ("gpu_watchdog_short", {"kernel": "7.1.3"}),
        ("mes_firmware_hangs", {"files": {FIRMWARE: f"{MES}83"}}),
        ("rocm_too_old", {"files": {ROCM: "7.2.4-81"}}),
        ("unified_memory_variable", {"env": {"GGML_CUDA_ENABLE_UNIFIED_MEMORY": "0"}}),
        ("gfx_override_variable", {"env": {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}}),
        ("display_freezes", {"kernel": "6.19.4", "dmesg": FROZEN}),
        ("kernel_too_old_for_gfx1151", {"kernel": "6.17.0"}),
        ("kernel_too_old_for_gfx1151", {"kernel": "6.18-rc4"}),
        ("kernel_too_old_for_gfx1151", {"kernel": "6.18+deb14-amd64"}),
        ("gpu_watchdog_short", {"files": {WATCHDOG: "0"}, "kernel": "7.0-rc2"}),
        ("kernel_too_old_for_gfx1151", {"kernel": "6.14.0", "files": {NODE: "cwsr_size 1"}}),
    ],
)
def test_what_harms_strix_halo_is_found(wanted, changes):
    assert wanted in constructed(**changes)


@pytest.mark.parametrize(
    ("absent", "changes"),
    [
        ("gpu_watchdog_short", {"files": {WATCHDOG: "10000"}, "kernel": "7.1.3"}),
        ("gpu_watchdog_short", {"files": {"/proc/cmdline": "amdgpu.lockup_timeout=10000"}, "kernel": "7.1.3"}),
        ("gpu_watchdog_short", {"kernel": "6.18.22"}),
        ("gpu_watchdog_short", {"files": {WATCHDOG: "-1"}, "kernel": "7.1.3"}),
        ("gpu_watchdog_short", {"files": {WATCHDOG: "-1,60000,-1,-1\n"}, "kernel": "7.1.3"}),
        ("mes_firmware_hangs", {"files": {FIRMWARE: f"{MES}80"}}),
        ("rocm_too_old", {"files": {ROCM: "7.14.0"}}),
        ("display_freezes", {"kernel": "6.18.22", "dmesg": FROZEN}),
        ("display_freezes", {"kernel": "6.19.4", "dmesg": "all is well"}),
        ("kernel_too_old_for_gfx1151", {"kernel": "6.17.0", "files": {NODE: "simd_count 80\ncwsr_size 1"}}),
    ],
)
def test_a_healthy_one_is_left_alone(absent, changes):
    assert absent not in constructed(**changes)


@pytest.mark.parametrize(
    ("system", "access", "wanted"),
    [
        ("ID=ubuntu", ["/etc/default/grub"], "/etc/default/grub && sudo update-grub"),
        ("ID=arch", ["/etc/default/grub"], "grub-mkconfig -o /boot/grub/grub.cfg"),
        ("ID=arch", ["/boot/loader/loader.conf"], "/boot/loader/entries"),
        ("ID=debian", ["/etc/kernel/cmdline"], "sudo kernel-install add-all"),
        ("ID=fedora", [], "sudo grubby --update-kernel=ALL --args="),
        ("ID=bazzite\nID_LIKE=fedora", ["/run/ostree-booted"], "sudo rpm-ostree kargs --append-if-missing="),
        ("ID=nixos", [], "boot.kernelParams = ["),
        ("ID=arch", ["/etc/kernel/cmdline"], "sudo mkinitcpio -P"),
        ("ID=cachyos\nID_LIKE=arch", ["/etc/default/limine", "/etc/default/grub"], "sudo limine-update"),
        ("ID=cachyos\nID_LIKE=arch", ["/etc/sdboot-manage.conf"], "sudo sdboot-manage gen"),
        ("ID=cachyos\nID_LIKE=arch", ["/boot/refind_linux.conf"], "each line of /boot/refind_linux.conf"),
        ("ID=arch", ["/efi/loader/loader.conf"], "/efi/loader/entries"),
        ("ID=steamos\nID_LIKE=arch", ["/etc/default/grub"], "sudo update-grub"),
        ('ID=pop\nID_LIKE="ubuntu debian"', ["/usr/bin/kernelstub"], "sudo kernelstub -a"),
        ("ID=debian", ["/etc/kernel/cmdline", "/usr/sbin/proxmox-boot-tool"], "sudo proxmox-boot-tool refresh"),
        (
            'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"',
            ["/etc/kernel/cmdline", "/usr/bin/sdbootutil"],
            "sudo sdbootutil update-all-entries",
        ),
        (
            'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"',
            ["/etc/default/grub"],
            "grub2-mkconfig -o /boot/grub2/grub.cfg",
        ),
        (
            'ID="opensuse-microos"\nID_LIKE="suse opensuse"',
            ["/etc/default/grub"],
            "sudo transactional-update grub.cfg",
        ),
        ("ID=gentoo", ["/etc/default/grub"], "sudo grub-mkconfig -o /boot/grub/grub.cfg"),
        ("ID=gentoo", [], "your boot loader's settings"),
    ],
)
def test_a_kernel_parameter_is_set_the_boot_loaders_way(system, access, wanted):
    found = constructed({"/etc/os-release": system, WATCHDOG: "2000"}, access=access)
    for name, parameter in (("gpu_watchdog_short", "amdgpu.lockup_timeout=10000"), ("amd_iommu_off", "iommu=pt")):
        assert wanted in found[name].fix
        assert parameter in found[name].fix


def test_the_npu_is_missed_only_with_a_program_for_it():
    assert constructed()["amd_iommu_off"].severity == "advice"
    assert constructed(access=["/usr/bin/flm"])["amd_iommu_off"].severity == "warning"


def test_older_kernels_need_both_parameters_for_the_gpus_memory():
    name = "sh-linux-amdvlk-vs-rocm"
    assert "amdgpu.gttsize=" in constructed(base=name, kernel="6.8.0")["gtt_at_default"].fix
    assert "amdgpu.gttsize=" not in constructed(base=name, kernel="7.1.3")["gtt_at_default"].fix


def test_a_ceiling_that_was_set_before_is_replaced():
    old = "ttm.pages_limit=4194304"
    line = {"/proc/cmdline": f"quiet {old} amdgpu.gttsize=16384", "/etc/os-release": "ID=fedora"}
    found = constructed(line, base="sh-linux-amdvlk-vs-rocm", kernel="7.1.3")["gtt_at_default"]
    assert f'--remove-args="{old} amdgpu.gttsize=16384"' in found.fix
    assert "ttm.pages_limit=28298444" in found.fix


def test_the_npu_misses_the_iommu_however_it_was_switched_off():
    changed = constructed({"/proc/cmdline": "quiet iommu=off", "/etc/os-release": "ID=fedora"})
    assert changed["amd_iommu_off"].title == "The NPU is switched off by iommu=off"
    assert '--remove-args="iommu=off"' in changed["amd_iommu_off"].fix


def test_the_chips_own_number_as_an_override_is_no_harm():
    name = "gfx_override_variable"
    assert name not in constructed(env={"HSA_OVERRIDE_GFX_VERSION": "11.5.1"})
    assert name in constructed(env={"HSA_OVERRIDE_GFX_VERSION": "11.5.1"}, base="sp-hx370-pci")
    assert name not in constructed(env={"HSA_OVERRIDE_GFX_VERSION": "11.5.0"}, base="krk-linux")


def test_a_processor_with_one_memory_channel_is_not_blamed_for_it():
    facts = {"DATA_WIDTH": 64, "SIZE": 16 * GIB, "SPEED_MTS": 4800}
    modules = "\n".join(f"E:MEMORY_DEVICE_0_{name}={value}" for name, value in facts.items())
    memory = "MemTotal: 16000000 kB\nMemAvailable: 15000000 kB"
    names = {"Intel(R) N150": False, "13th Gen Intel(R) Core(TM) i5-1335U": True}
    for name, is_blamed in names.items():
        files = {"/run/udev/data/+dmi:id": modules, "/proc/meminfo": memory}
        recording = copy.deepcopy(RECORDINGS["mtl-zbook-power-g11"])
        info = recording["files"]["/proc/cpuinfo"]
        files["/proc/cpuinfo"] = re.sub("model name\t: .*", f"model name\t: {name}", info)
        assert ("single_channel" in constructed(files, base="mtl-zbook-power-g11")) is is_blamed, name


def test_free_pages_of_the_contiguous_allocator_are_no_memory_for_models():
    recording = copy.deepcopy(RECORDINGS[HALO])
    before = recorded_report(RecordedHost(recording)).memory.available_bytes
    recording["files"]["/proc/meminfo"] += "\nCmaFree:         7800000 kB\n"
    after = recorded_report(RecordedHost(recording)).memory.available_bytes
    assert before - after == 7_800_000 * 1024


def test_children_never_get_the_variable_that_garbles_rocm(monkeypatch, tmp_path):
    monkeypatch.setenv("GGML_CUDA_ENABLE_UNIFIED_MEMORY", "1")
    monkeypatch.setattr(environment, "AMD_COMPUTE", tmp_path / "absent")
    assert "GGML_CUDA_ENABLE_UNIFIED_MEMORY" in environment.without_secrets()  # NVIDIA's users may need it
    monkeypatch.setattr(environment, "AMD_COMPUTE", tmp_path)
    assert "GGML_CUDA_ENABLE_UNIFIED_MEMORY" not in environment.without_secrets()


def test_kernels_that_do_not_load_come_first():
    broken = BackendReport("cpu", "libggml-cpu.so", "failed", "it was killed by SIGILL", "rebuild")
    found = examined("vm-firecracker", broken)
    assert found[0].id == "no_kernels"
    assert "SIGILL" in found[0].detail


def test_kernels_built_for_an_older_processor_are_noticed():
    old = BackendReport("cpu", "libggml-cpu-haswell.so", "usable", features=("AVX", "AVX2", "FMA"))
    assert "slow_kernels" in ids(examined("vm-firecracker", old))
    right = BackendReport("cpu", "libggml-cpu-zen4.so", "usable", features=("AVX2", "AVX512"))
    assert "slow_kernels" not in ids(examined("vm-firecracker", right))


def test_a_gpu_without_any_backend_is_told_what_to_build():
    missing = BackendReport("vulkan", "", "not_built", "not installed", "Install glslc, then rebuild.")
    cpu = BackendReport("cpu", "libggml-cpu.so", "usable", features=("AVX512",))
    found = examined("sh-flow-z13-linux-gtt96", missing, cpu)
    assert any(f.id == "backend_not_built" and "vulkan" in f.title for f in found)


def test_the_build_is_named():
    machine = reports()["sh-linux-amdvlk-vs-rocm"]
    assert "vulkan, rocm. They see AMD Radeon 8060S (Vulkan0), AMD Radeon 8060S (ROCm0)." in build_summary(machine)
    assert "CPU only" in build_summary(reports()["vm-firecracker"])


@pytest.mark.process
def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(RECORDINGS["sh-linux-driver-failed"]))
    shown = CliRunner().invoke(cli, ["doctor", "--from", str(file)])
    assert shown.exit_code == 0
    assert "linux-firmware" in shown.output
    told = json.loads(CliRunner().invoke(cli, ["doctor", "--from", str(file), "--json"]).output)
    assert told["findings"][0]["severity"] in RANK
    live = CliRunner().invoke(cli, ["doctor"])
    assert live.exit_code == 0
    assert live.output.startswith("Kernels:")


def test_the_summary_tells_of_our_own_kernels_for_prompts():
    recorded = reports()["vm-firecracker"]
    device = BackendDevice("Tiles", "AVX-512 VNNI", "accel", 0, 0)
    tiles = BackendReport("tiles", "libggml-tiles.so", "usable", devices=(device,))
    others = (BackendReport("cpu", "libggml-cpu.so", "usable"),)
    with_them = merged(replace(recorded, backends=(*others, tiles)))
    assert "Tessera's for prompts: AVX-512 VNNI" in build_summary(with_them)
    assert "CPU only" in build_summary(with_them)
    assert [r.backend for d in with_them.devices if d.kind == "cpu" for r in d.runtimes].count("tiles") == 1
    without = replace(recorded, backends=others)
    assert "Tessera's for prompts were not built" in build_summary(without)
    refused = BackendReport("tiles", "libggml-tiles.so", "no_device", reason=NO_INSTRUCTIONS)
    assert "not used: this CPU lacks AVX2" in build_summary(replace(recorded, backends=(*others, refused)))


@pytest.mark.parametrize(
    ("name", "cpu", "words"),
    [
        (
            "m5-max",
            "libggml-cpu.dylib",
            "libggml-cpu.dylib (llama.cpp's kernels; Tessera's are for x86-64 Linux and ",
        ),
        (
            "x2-elite-windows",
            "ggml-cpu.dll",
            "(llama.cpp's kernels; Tessera's are for x86-64 Linux and Windows); GPU",
        ),
        ("x1-26-100", "libggml-cpu.so", "(llama.cpp's kernels; Tessera's are for x86-64 Linux and Windows); GPU"),
        (
            "arl-h-win",
            "ggml-cpu-alderlake.dll",
            "; Tessera's for prompts are missing: Tessera's installer brings them; ",
        ),
        ("vm-firecracker", "libggml-cpu.so", "; Tessera's for prompts were not built; "),
        ("arl-h-win", "", "Kernels: no CPU library; GPU"),
    ],
)
def test_the_summary_says_why_there_are_none_of_our_own_kernels(name, cpu, words):
    backends = (BackendReport("cpu", cpu, "usable"),) if cpu else ()
    assert words in build_summary(replace(reports()[name], backends=backends))


def test_our_own_kernels_were_never_run_on_windows_and_the_summary_says_so():
    device = BackendDevice("Tiles", "AVX2", "accel", 0, 0)
    backends = (
        BackendReport("cpu", "ggml-cpu-haswell.dll", "usable"),
        BackendReport("tiles", "ggml-tiles.dll", "usable", devices=(device,)),
    )
    summary = build_summary(merged(replace(reports()["arl-h-win"], backends=backends)))
    assert "Tessera's for prompts: AVX2 (checked under Wine, never run on Windows)" in summary


def test_kernels_for_prompts_are_no_gpus():
    recorded = reports()["sh-linux-amdvlk-vs-rocm"]
    device = BackendDevice("Tiles", "AVX-512 VNNI", "accel", 0, 0)
    tiles = BackendReport("tiles", "libggml-tiles.so", "usable", devices=(device,))
    found = merged(replace(recorded, backends=(*recorded.backends, tiles)))
    assert {d.kind for d in found.devices for r in d.runtimes if r.backend == "tiles"} == {"cpu"}


@pytest.mark.parametrize(
    ("version", "severity"), [("1.1.2.64", "advice"), ("1.1.2.65", None), ("1.2.0.1", None), ("1.0.0.166", None)]
)
def test_firmware_of_an_npu_below_the_reported_one_is_named(version, severity):
    """Constructed from a recording with 1.1.2.65; 1.0 is a device that failed, which has its own finding."""
    base = "sh-flow-z13-linux-gtt96"
    path = next(name for name in RECORDINGS[base]["files"] if name.endswith("/fw_version"))
    found = constructed({path: version}, base=base)
    finding = found.get("npu_firmware_old")
    assert (finding.severity if finding else None) == severity
    if finding:
        assert "1.1.2.65" in finding.title
        assert "linux-firmware" in finding.fix


def with_carve_out(gib, installed=128, shared=None, **heaps):
    """Constructed from the recorded Strix Halo under Windows, with the sizes in the reports that the cases name."""
    recording = copy.deepcopy(RECORDINGS["sh-windows-dxgi-discrete"])
    total = installed - gib
    recording["api"]["memory_status"] = {
        "total": int(total * GIB), "available": int(total * GIB) // 2, "installed": installed * GIB
    }  # fmt: skip
    adapter = recording["api"]["dxgi_adapters"][0]
    adapter |= {"dedicated": int(gib * GIB), "shared": int((total / 2 if shared is None else shared) * GIB)}
    reports = []
    for backend, size in heaps.items():
        device = {"name": f"{backend}0", "description": adapter["description"], "kind": "igpu", "device_id": None}
        device |= {"total_bytes": int(size * GIB), "free_bytes": int(size * GIB)}
        reports.append({"backend": backend, "library": f"{backend}.dll", "state": "usable", "devices": [device]})
    recording["backends"] = reports
    return recorded_report(RecordedHost(recording))


@pytest.mark.parametrize(
    ("machine", "budget_gib", "finding"),
    [
        # lmstudio-bug-tracker#1790: 96 GB reserved, Vulkan stops near 64.
        ({"gib": 96, "vulkan": 64}, 64, "heaps_below_carve_out"),
        # unsloth PR 10418: one machine, 111.65 GiB by Vulkan (heaps added), 99.74 by HIP.
        ({"gib": 96, "vulkan": 111.65, "rocm": 99.74}, 112, "large_carve_out"),
        # The other backend reaches all of it: nothing is lost.
        ({"gib": 96, "vulkan": 64, "rocm": 99.74}, 112, "large_carve_out"),
        # llama.cpp#26089: BIOS at Auto, "VRAM 0": the GPU shares half of the memory.
        ({"gib": 0, "vulkan": 63.8}, 64, None),
        ({"gib": 0.5, "vulkan": 64}, 64.25, None),
        # lemonade PR 842: half of it reserved.
        ({"gib": 64, "vulkan": 95.8}, 96, None),
        ({"gib": 64}, 96, None),
    ],
)  # fmt: skip
def test_heaps_are_compared_with_what_firmware_sets_aside(machine, budget_gib, finding):
    found = with_carve_out(**machine)
    gpu = next(d for d in found.devices if d.kind == "igpu")
    assert gpu.memory.budget_bytes == pytest.approx(budget_gib * GIB, rel=0.01)
    ids = {f.id for f in diagnose(found)} & {"heaps_below_carve_out", "large_carve_out"}
    assert ids == ({finding} if finding else set())
    if finding == "heaps_below_carve_out":
        free = Ledger(lambda: found).available(gpu.id)
        assert free <= 64 * GIB


def test_no_recorded_machine_has_heaps_below_its_carve_out():
    for name in RECORDINGS:
        assert "heaps_below_carve_out" not in {f.id for f in examined(name)}, name


def test_folders_of_tessera_that_cannot_be_written_are_named(monkeypatch, tmp_path):
    """One start with sudo is enough. What is above them is not Tessera's to change."""
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "my home"))
    assert doctor_command._folders() == ()
    monkeypatch.setattr(doctor_command.os, "access", lambda *_: False)
    monkeypatch.setattr(doctor_command, "_owns", lambda _: False)
    (above,) = doctor_command._folders()
    assert (above.title, above.fix) == (f"{tmp_path} cannot be written", "")
    state = user_paths().state
    state.mkdir(parents=True)
    own = next(finding for finding in doctor_command._folders() if finding.fix)
    assert own.fix == f"sudo chown -R $USER '{state}'"


def test_a_missing_sandbox_is_installed_as_this_system_does():
    def fix(release):
        [finding] = doctor_command._unboxed(because("no_bubblewrap"), parsed(release, is_ostree=False))
        return finding.fix

    assert fix("ID=fedora") == "Install it with: sudo dnf install bubblewrap"
    assert fix("ID=nixos") == fix("ID=void") == "Install the package bubblewrap."
    assert doctor_command._unboxed(None, parsed("ID=fedora", is_ostree=False)) == ()


def test_a_home_that_may_not_be_read_is_named_instead_of_an_error(monkeypatch, tmp_path):
    """As where a start with sudo made ~/.local/share, under umask 077."""
    real, closed = os.stat, tmp_path / "closed"

    def stat(path, *arguments, **options):
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    closed.mkdir()
    monkeypatch.setenv("TESSERA_HOME", str(closed / "home"))
    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda path, _mode: path != closed)
    monkeypatch.setattr(doctor_command, "_owns", lambda _: False)
    (finding,) = doctor_command._folders()
    assert (finding.title, finding.fix) == (f"{closed} cannot be written", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    (finding,) = doctor_command._folders()
    assert finding.fix == f"sudo chown -R $USER {closed}"
    assert PackStore(closed / "kernels").packs() == VersionStore(closed / "engines").versions() == ()
    assert RealHost().access(str(closed / "node")) == "denied"
