"""The command or step that fixes each reason a device is not usable."""

TRY = "Run `tessera doctor` to try the backends that could use it."
UNKNOWN = "Run `tessera devices --record FILE` and attach the file to a bug report: this device is new to Tessera."

INTEL_DRIVER = "Update the kernel (xe and i915 support new GPUs late) and linux-firmware; then reboot."
OTHER_DRIVER = "Install the kernel driver of this GPU, then reboot."


def gpu_driver(vendor: str, firmware: str) -> str:
    """How to get a GPU driver on Linux, but NVIDIA's. `firmware` is the command for AMD's."""
    if vendor == "AMD":
        return f"Install amdgpu's firmware: `{firmware}`; then reboot."
    return INTEL_DRIVER if vendor == "Intel" else OTHER_DRIVER


def windows_driver(vendor: str) -> str:
    """How to get a driver on Windows."""
    return f"Install {vendor}'s current driver from Windows Update or the vendor's site, then restart."


OUTSIDE_CONTAINER = "Install the GPU's driver and firmware on the computer itself, outside this container."


def firmware(module: str, address: str, command: str = "") -> str:
    """What to do when a driver refuses its device. `command` installs its firmware; empty if unknown."""
    seen = f"sudo dmesg | grep -e {module} -e {address}"
    if command:
        return (
            f"Update its firmware, `{command}`, and reboot; `{seen}` shows what {module} "
            "missed (error -22 or -2 is a missing firmware file)."
        )
    return (
        f"Update linux-firmware and reboot; `{seen}` shows what {module} "
        "missed (error -22 or -2 is a missing firmware file)."
    )


def kernel_parameters(change: str) -> str:
    """What to do about kernel parameters that keep the driver from its device; `change` removes them."""
    return f"Remove them: {change}"


def render_group(node: str) -> str:
    """How to get permission for a device node."""
    return f"Join the group that may open {node}: `sudo usermod -aG render,video $USER`, then log in again."


def container_group(node: str) -> str:
    """How to get permission for a device node that was passed into a container."""
    return (
        f"Start the container with the group that may open {node}: Docker with "
        f"`--group-add $(stat -c %g {node})`, Podman with `--group-add keep-groups`."
    )


def node(path: str) -> str:
    """What to do about a device node with wrong permissions."""
    return f"Allow this user to open it: `ls -l {path}` shows its group; join it and log in again."


def vfio(address: str) -> str:
    """What to do about a device bound to vfio-pci."""
    return f"Release it: remove its id from the vfio-pci.ids kernel parameter and reboot ({address})."


def container_device(path: str) -> str:
    """What to do about a device that is missing only because of a container."""
    return f"Pass it into the container: `--device {path}`."


CONTAINER_NVIDIA = "Start the container with `--gpus all` (it needs NVIDIA's container toolkit on the host)."
CONTAINER_NVIDIA_VULKAN = "Start the container with `--gpus all -e NVIDIA_DRIVER_CAPABILITIES=all`."
RESTART = (
    "Restart, if the system was updated since the last start. `vulkaninfo --summary` (package vulkan-tools) must "
    "list the GPU."
)
RESTART_NVIDIA = (
    "Restart, if NVIDIA's driver was updated since the last start: it does not work until then. `nvidia-smi` must "
    "list the GPU."
)
NPU_XDNA1 = (
    "This first-generation NPU (XDNA1) runs small vision models only; no language-model runtime supports it. "
    "Use the integrated GPU."
)
NPU_FIRMWARE = (
    "Update linux-firmware (releases from the time of kernel 7.0 contain NPU firmware 1.1) and reboot: language "
    "models need 1.1 or newer."
)
NPU_MEMLOCK = (
    "Allow unlimited locked memory: `echo '* - memlock unlimited' | sudo tee "
    "/etc/security/limits.d/99-npu.conf`, then log in again."
)
NPU_RUNTIME = {
    "AMD": "Install AMD's runtime (XRT and the Ryzen AI or FastFlowLM package): the driver runs no model.",
    "Intel": "Install Intel's NPU driver (packages intel-level-zero-npu, intel-driver-compiler-npu, "
    "intel-fw-npu), then OpenVINO's kernel pack openvino-linux-x86_64, which runs GGUF files on the NPU. "
    "It is not published yet: build it from Tessera's sources (see the page Kernels there).",
    "Qualcomm": "Install ONNX Runtime with the QNN provider: `pip install onnxruntime-qnn`.",
    "Apple": "Only Core ML reaches the Neural Engine; language models run faster on this GPU through Metal.",
}

_INTEL_WINDOWS = (
    "OpenVINO's kernel pack openvino-windows-x86_64 runs GGUF files on the NPU. It is not published yet: build it "
    "from Tessera's sources (see the page Kernels there)."
)


def npu_runtime_windows(vendor: str) -> str:
    """What to install to run models on an NPU that has its Windows driver."""
    return _INTEL_WINDOWS if vendor == "Intel" else NPU_RUNTIME[vendor]


def npu_iommu(change: str) -> str:
    """What to do about an AMD NPU without the IOMMU; `change` sets the kernel parameters."""
    return f"The NPU needs the IOMMU, with which the GPU reads prompts 5 to 16 % slower: {change}"


def npu_kernel(driver: str, since: tuple[int, int], kernel: str) -> str:
    """What to do about an NPU without a bound driver."""
    needs = f"Linux {since[0]}.{since[1]} or newer has it" if since[0] else "a recent kernel has it"
    return f"Load its driver: `sudo modprobe {driver}` ({needs}; this is {kernel or 'an unknown kernel'})."
