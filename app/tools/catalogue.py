"""All tool sources that a chat can enable, by name: built-in tools and the user's servers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.settings import load
from app.tools.builtin import CALCULATOR, FILES, MEMORY, WEB, Calculator, FileReader
from app.tools.consent import ToolConsent
from app.tools.mcp_config import BadMcpConfig, ServerList
from app.tools.mcp_sign_in import SignIns
from app.tools.toolset import RunningServers, Source
from app.tools.types import ToolRefused, shown_argv, shown_line
from engine.core.paths import Paths


@dataclass(frozen=True)
class Offered:
    """A source that can be enabled; `detail` is its full description. `url` is the address of a remote server."""

    name: str
    detail: str
    built_in: bool = False
    url: str = ""
    signed_in: bool = False


def offered(paths: Paths | None = None, *, window: bool = False) -> list[Offered]:
    """All sources; the memory belongs to the window. Raises: BadMcpConfig: the file of servers is invalid."""
    own = [
        Offered(CALCULATOR, "Numbers and units, calculated outside the model.", built_in=True),
        Offered(FILES, "Reads files in the project's folder and in those the settings allow.", built_in=True),
        Offered(
            WEB,
            "Reads web pages, and searches with the SearXNG instance of the settings. Each site sees this "
            "computer's address and what is read there; the instance gets the search words.",
            built_in=True,
        ),
    ]
    if window:
        words = "Uses facts from earlier chats, and saves new ones that you allow. They stay on this computer."
        own.append(Offered(MEMORY, words, built_in=True))
    sign_ins = SignIns(paths)
    return own + [
        Offered(
            server.name,
            shown_line(server.url) if server.url else shown_argv(server.argv),
            url=server.url,
            signed_in=bool(server.url) and sign_ins.find(server.url) is not None,
        )
        for server in ServerList(paths).read()
    ]


def remove_server(name: str) -> None:
    """Remove a server and its sign-in. Raises: BadMcpConfig, OSError, KeyError."""
    servers = ServerList()
    removed = servers.find(name)
    servers.remove(name)
    if removed is not None and removed.url and all(server.url != removed.url for server in servers.read()):
        SignIns().keep(removed.url, None)


def open_sources(
    names: Sequence[str], folder: Path, servers: RunningServers, consent: ToolConsent
) -> tuple[list[Source], list[str]]:
    """Open the named sources, with servers started in `folder`; return them and the problems as messages."""
    sources: list[Source] = []
    problems: list[str] = []
    try:
        by_name = {server.name: server for server in ServerList().read()}
    except BadMcpConfig as error:
        by_name = {}
        problems.append(str(error))
    for name in names:
        try:
            if name in _BUILT_IN:
                sources.append(_BUILT_IN[name](folder))
                if not sources[-1].specs:
                    problems.append(_EMPTY[name])
            elif name in by_name:
                sources.append(servers.open(by_name[name], folder, consent))
            else:
                problems.append(f"The MCP server {name!r} no longer exists.")
        except ToolRefused as error:
            problems.append(str(error))
    return sources, problems


def _web(folder: Path) -> Source:
    from app.tools.web import Web

    del folder
    settings = load()
    return Web(settings.text("web.searxng"), offline=settings.flag("network.offline"))


def _memory(folder: Path) -> Source:
    del folder
    raise ToolRefused("The memory works in chats of the window only.")


_BUILT_IN: Final[dict[str, Callable[[Path], Source]]] = {
    CALCULATOR: lambda _: Calculator(),
    FILES: lambda folder: FileReader(_allowed(folder)),
    WEB: _web,
    MEMORY: _memory,
}
# Why a built-in source has no tools.
_EMPTY: Final = {
    FILES: "No folder may be read: the settings name none, and the chat is in no project.",
    WEB: "The web is not used: the setting network.offline is on.",
}


def _allowed(folder: Path) -> list[Path]:
    """Readable folders: the project's, unless the home folder is in it, and those of the settings."""
    folders = [Path(text.strip()).expanduser() for text in load().text("tools.folders").split(";") if text.strip()]
    holds_home = Path.home().resolve().is_relative_to(folder.resolve())
    return [*([] if holds_home else [folder]), *folders]
