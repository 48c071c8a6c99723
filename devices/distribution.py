"""Detects the Linux distribution, and how it installs packages."""

from typing import Final, Literal

import msgspec

from devices.host import Host, fields, text

Family = Literal["debian", "fedora", "arch", "suse", "nixos", "other"]

_FAMILIES: Final[dict[str, Family]] = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "fedora",
    "arch": "arch",
    "suse": "suse",
    "opensuse": "suse",
    "nixos": "nixos",
}
_INSTALL: Final[dict[Family, str]] = {
    "debian": "sudo apt install {}",
    "fedora": "sudo dnf install {}",
    "arch": "sudo pacman -S {}",
    "suse": "sudo zypper install {}",
}
_IMAGE_INSTALL: Final = "rpm-ostree install {}"


class Distribution(msgspec.Struct, frozen=True):
    """`id` and `version` as in /etc/os-release; `name` is the display name. Empty if unknown.

    `image_based`: packages are layered on an image and take effect after a restart (Silverblue, Bazzite).
    """

    id: str = ""
    version: str = ""
    name: str = "this system"
    family: Family = "other"
    image_based: bool = False

    def install(self, packages: str) -> str:
        """The command that installs packages, or only the packages if the command is unknown."""
        template = _IMAGE_INSTALL if self.image_based else _INSTALL.get(self.family, "{}")
        return template.format(packages)

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers; empty for a rolling or testing release."""
        parts = self.version.split(".")
        return tuple(int(part) for part in parts) if all(p.isdecimal() and p.isascii() for p in parts) else ()


def distribution(host: Host) -> Distribution:
    """The distribution according to /etc/os-release."""
    if host.system != "linux":
        return Distribution()
    found = {
        key: value.strip().strip("\"'")
        for key, value in fields(text(host, "/etc/os-release") or text(host, "/usr/lib/os-release"), "=").items()
    }
    own, version = found.get("ID", "")[:64], found.get("VERSION_ID", "")[:32]
    words = [own, *found.get("ID_LIKE", "").split()]
    family: Family = next((_FAMILIES[word] for word in words if word in _FAMILIES), "other")
    name = f"{found.get('NAME', own).removesuffix(' GNU/Linux').removesuffix(' Linux')} {version}".strip()[:64]
    image = family == "fedora" and host.access("/run/ostree-booted") != "absent"
    return Distribution(own, version, name or "this system", family, image)
