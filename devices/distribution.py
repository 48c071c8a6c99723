"""Detects the Linux distribution, how it installs packages, and how it sets kernel parameters."""

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
    release = {
        key: value.strip().strip("\"'")
        for key, value in fields(text(host, "/etc/os-release") or text(host, "/usr/lib/os-release"), "=").items()
    }
    own, version = release.get("ID", "")[:64], release.get("VERSION_ID", "")[:32]
    words = [own, *release.get("ID_LIKE", "").split()]
    family: Family = next((_FAMILIES[word] for word in words if word in _FAMILIES), "other")
    name = f"{release.get('NAME', own).removesuffix(' GNU/Linux').removesuffix(' Linux')} {version}".strip()[:64]
    image = family == "fedora" and host.access("/run/ostree-booted") != "absent"
    return Distribution(own, version, name or "this system", family, image)


def set_kernel_parameters(host: Host, add: str, remove: str = "") -> str:
    """Commands that change the kernel command line for the next start, by boot loader.

    `add` may have several parameters; `remove` is one of those on the line now.
    """
    system = distribution(host)
    if system.family == "nixos":
        less = f", without {remove}" if remove else ""
        words = " ".join(f'"{word}"' for word in add.split())
        return f"in configuration.nix: boot.kernelParams = [ {words} ]{less}; then: sudo nixos-rebuild boot, reboot"
    if host.access("/run/ostree-booted") != "absent":
        less = f" --delete-if-present={remove}" if remove else ""
        more = "".join(f" --append-if-missing={word}" for word in add.split())
        return f"sudo rpm-ostree kargs{more}{less} && sudo systemctl reboot"
    if (
        any(host.access(f"/usr/{folder}/grubby") != "absent" for folder in ("sbin", "bin"))
        or system.family == "fedora"
    ):
        less = f' --remove-args="{remove}"' if remove else ""
        return f'sudo grubby --update-kernel=ALL --args="{add}"{less} && sudo reboot'
    if host.access("/etc/kernel/cmdline") != "absent":  # systemd-boot, and unified kernel images
        less = f"s/ *{remove}//; " if remove else ""
        return f"sudo sed -i '{less}s/$/ {add}/' /etc/kernel/cmdline && sudo kernel-install add-all && sudo reboot"
    if host.access("/etc/default/grub") == "absent" and host.access("/boot/loader/loader.conf") != "absent":
        less = f" and remove {remove}" if remove else ""
        return f"add {add} to the options line of the files in /boot/loader/entries{less}, then: sudo reboot"
    update = {
        "arch": "sudo grub-mkconfig -o /boot/grub/grub.cfg",
        "suse": "sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
    }.get(system.family, "sudo update-grub")
    less = f"s/ *{remove}//; " if remove else ""
    edit = f"{less}s/^GRUB_CMDLINE_LINUX_DEFAULT=./&{add} /"
    return f"sudo sed -i '{edit}' /etc/default/grub && {update} && sudo reboot"
