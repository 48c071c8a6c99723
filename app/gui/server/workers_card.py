"""Remote hosts that hold layers of a model: add over SSH, accept the host key, check, remove."""

import msgspec
from PySide6.QtWidgets import QLayout, QVBoxLayout

from app.client import ApiError
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.reasons import error_message, translated
from app.gui.server.rows_card import RowsCard, kind_of_state
from app.gui.widgets.basics import Banner, button, framed, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox
from engine.api.remotes import RemoteRequest, RemoteRow, Remotes, Use

_SSH = 22  # default SSH port
_MOST_NAME = 40
_MOST_ADDRESS = 300


class RemotesCard(RowsCard[Remotes]):
    """Manages remote hosts. An unknown host key is shown; nothing is stored until the user accepts it."""

    def __init__(self, services: AppContext, banner: Banner) -> None:
        super().__init__(services, banner)
        self._request: tuple[str, RemoteRequest] | None = None
        self.name = self._field(self.tr("Name"), self.tr("Name of the other computer"), _MOST_NAME)
        self.where = self._field("you@desk-pc", self.tr("User and address for SSH"), _MOST_ADDRESS)
        self.use = ComboBox(self.tr("When to send layers there"))
        self.use.addItem(self.tr("when a model does not fit here"), "unfit")
        self.use.addItem(self.tr("also when it is faster"), "faster")
        self.use.addItem(self.tr("only for models pinned to it"), "pinned")
        who = row(self.name, self.where, grow=1)
        how = Flow()
        how.add(self.use)
        how.add(self.add)
        entry = stack(who, how)
        self._question = framed("banner-warn")
        self._shown = label("", "", wrap=True, selectable=True)
        self.accept = button(self.tr("It is the right computer"), self._accept, "primary")
        self.refuse = button(self.tr("Do not add it"), self._refuse)
        buttons = row(1, self.refuse, self.accept)
        self._question.setLayout(stack(self._shown, buttons, spacing=8, margins=(16, 8, 8, 8)))
        self._question.hide()
        self.setLayout(stack(self._note, self._rows, self._question, entry, spacing=12, margins=(16, 16, 16, 16)))
        self._refresh_button()
        self._show(Remotes())

    def _fetch(self) -> Remotes:
        return self._services.api.remotes()

    def _rows_of(self, state: Remotes) -> tuple[list[QLayout], str]:
        note = (
            self.tr(
                "Layers are sent there through an SSH tunnel with your keys; the card of each model shows how many."
            )
            if state.remotes
            else self.tr(
                "A model that is too large for this computer can run on several. On the other one, run: tessera "
                "worker"
            )
        )
        return [self._remote(remote) for remote in state.remotes], note

    def _remote(self, remote: RemoteRow) -> QVBoxLayout:
        api, name = self._services.api, remote.name
        chips = [
            label(self._state(remote), kind_of_state(remote.state)),
            *(label(model, "chip-ok") for model in remote.models),
        ]
        line = self._line(name, chips, lambda: api.check_remote(name), lambda: api.remove_remote(name))
        port = "" if remote.port == _SSH else f":{remote.port}"
        facts = [f"{remote.user}@{remote.host}{port}", remote.fingerprint]
        facts += [
            self.tr("{device}: {free} of {total} free").format(
                device=device.description,
                free=formatted.size(device.free_bytes),
                total=formatted.size(device.total_bytes),
            )
            for device in remote.devices
        ]
        if remote.reason:
            facts.append(translated(remote.reason_detail, remote.reason))
        return stack(line, *(label(fact, "small", wrap=True, selectable=True) for fact in facts), spacing=4)

    def _state(self, remote: RemoteRow) -> str:
        if remote.state == "ok":
            return self.tr("{ms} ms, {speed} MB/s").format(
                ms=formatted.decimal(remote.rtt_ms), speed=formatted.whole(remote.down_bytes_s / 1e6)
            )
        words = {
            "unknown": self.tr("Not checked yet"),
            "refused": self.tr("Rejects the key"),
            "unreachable": self.tr("Cannot be reached"),
            "changed_key": self.tr("Shows another host key"),
            "no_worker": self.tr("Runs no worker"),
            "other_kernel": self.tr("Update available"),
            "slow": self.tr("Slow now"),
            "lost": self.tr("Lost"),
        }
        return words[remote.state]

    def _add(self) -> None:
        name, where = self.name.text().strip(), self.where.text().strip()
        user, at, address = where.rpartition("@")
        host, port = _host_and_port(address)
        if not name or not at or not host:
            return
        use: Use = self.use.currentData()
        self._put(name, RemoteRequest(host=host, port=port, user=user, use=use))

    def _put(self, name: str, request: RemoteRequest) -> None:
        self.add.setEnabled(False)

        def done(_: object) -> None:
            self.name.clear()
            self.where.clear()
            self._refuse()
            self.refresh()

        def failed(error: Exception) -> None:
            self._refresh_button()
            if isinstance(error, ApiError) and error.code == "unknown_host_key":
                self._confirm_host_key(name, request, str(error))
            else:
                self._banner.notify(error_message(error), "bad")

        self._services.background.run(lambda: self._services.api.put_remote(name, request), done, failed, self)

    def _confirm_host_key(self, name: str, request: RemoteRequest, text: str) -> None:
        fingerprint = next((word.rstrip(",") for word in text.split() if word.startswith("SHA256:")), "")
        self._request = (name, msgspec.structs.replace(request, host_key=fingerprint))
        self._shown.setText(
            self.tr(
                "{host} shows the host key {fingerprint}. Compare it on the remote host: ssh-keygen -lf {file}"
            ).format(host=request.host, fingerprint=fingerprint, file="/etc/ssh/ssh_host_ed25519_key.pub")
        )
        self._question.show()
        self.refuse.setFocus()

    def _accept(self) -> None:
        if self._request is not None:
            self._put(*self._request)

    def _refuse(self) -> None:
        self._request = None
        self._question.hide()

    def _refresh_button(self) -> None:
        where = self.where.text().strip()
        self.add.setEnabled(bool(self.name.text().strip() and "@" in where.strip("@")))


def _host_and_port(address: str) -> tuple[str, int]:
    """Split `desk`, `desk:2222` or `[fe80::1]:2222`.

    Several colons without brackets are an address without a port.
    """
    bare, colon, digits = address.rpartition(":")
    has_port = colon and digits.isascii() and digits.isdigit() and (":" not in bare or bare.endswith("]"))
    host, port = (bare, int(digits)) if has_port else (address, _SSH)
    return host.removeprefix("[").removesuffix("]"), port
