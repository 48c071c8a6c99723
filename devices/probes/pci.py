"""PCI functions of a Linux machine, from sysfs, with or without a bound driver."""

import re

import msgspec

from devices.host import Host, fields, number, read_number, suspended, text

BUS = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
DISPLAY, NPU_CLASSES = 0x03, (0x0B, 0x11, 0x12)


class PciFunction(msgspec.Struct, frozen=True):
    """One function: address (`0000:c3:00.0`), class (24 bits), ids, and the driver bound to it."""

    address: str
    class_code: int
    vendor: int
    device: int
    revision: int | None
    driver: str | None
    virtual_function: bool
    asleep: bool

    @property
    def path(self) -> str:
        """Its sysfs folder."""
        return f"{BUS}/{self.address}"

    @property
    def base_class(self) -> int:
        """The first class byte: 3 for displays, 0x12 for accelerators."""
        return self.class_code >> 16

    @property
    def pci_id(self) -> str:
        """The ids as `vvvv:dddd`."""
        return f"{self.vendor:04x}:{self.device:04x}"


def pci_functions(host: Host) -> tuple[PciFunction, ...]:
    """Functions that could be a GPU or an NPU, without virtual functions of a listed device."""
    functions: list[PciFunction] = []
    for address in host.listdir(BUS):
        function = _function(host, address) if ADDRESS.fullmatch(address) else None
        if function is not None and not function.virtual_function and not _sibling(function, functions):
            functions.append(function)
    return tuple(functions)


def _function(host: Host, address: str) -> PciFunction | None:
    base = f"{BUS}/{address}"
    event = fields(text(host, f"{base}/uevent"), "=")
    class_code = number("0x" + event["PCI_CLASS"]) if event.get("PCI_CLASS") else None
    if class_code is None:
        class_code = read_number(host, f"{base}/class")
    if class_code is None or class_code >> 16 not in (DISPLAY, *NPU_CLASSES):
        return None
    vendor_text, _, device_text = event.get("PCI_ID", "").partition(":")
    vendor, device = number("0x" + vendor_text), number("0x" + device_text)
    if vendor is None or device is None:
        vendor, device = (read_number(host, f"{base}/{name}") for name in ("vendor", "device"))
    if vendor is None or device is None or vendor > 0xFFFF or device > 0xFFFF:
        return None
    link = host.readlink(f"{base}/driver")
    driver = event.get("DRIVER") or (link.rpartition("/")[2] if link else None)
    return PciFunction(
        address=address,
        class_code=class_code,
        vendor=vendor,
        device=device,
        revision=read_number(host, f"{base}/revision"),
        driver=driver or None,
        virtual_function=host.readlink(f"{base}/physfn") is not None,
        asleep=suspended(host, address),
    )


def _sibling(function: PciFunction, functions: list[PciFunction]) -> bool:
    """Whether this is another function of a listed device: an SR-IOV VF whose link is not shown."""
    slot = function.address.rpartition(".")[0]
    return any(
        other.address.rpartition(".")[0] == slot
        and (other.vendor, other.device, other.class_code)
        == (function.vendor, function.device, function.class_code)
        for other in functions
    )
