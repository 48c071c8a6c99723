"""Why a device is not usable, where that needs no numbers. The window translates these by their English text."""

from typing import Final

NOT_INSTALLED: Final = "its library is not installed"
NOT_TRIED: Final = "not tried yet"
NO_DRIVER_BOUND: Final = "no driver is bound to it"
NO_DISPLAY_DRIVER: Final = "no display driver is installed"
NO_DRIVER: Final = "no driver is installed"
NO_BACKEND_KNOWN: Final = "no backend is known for it"
CORE_ML_ONLY: Final = "reached through Core ML only"
SET_ASIDE_FOR_VM: Final = "it is set aside for a virtual machine (vfio-pci)"
IOMMU_OFF: Final = "the IOMMU is switched off (amd_iommu=off)"
NOT_IN_CONTAINER: Final = "its device node is not in this container"
