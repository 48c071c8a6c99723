"""Connections to all upstreams, created on first use and again after an address changed."""

import asyncio
from typing import TYPE_CHECKING

from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.types import PREFIX, Health

if TYPE_CHECKING:
    from engine.upstreams.link import UpstreamLink
    from engine.upstreams.runner import UpstreamRunner


class UpstreamLinks:
    """One instance per server process; use from its event loop."""

    def __init__(self, registry: UpstreamRegistry) -> None:
        self.registry = registry
        self._links: dict[str, UpstreamLink] = {}

    def link(self, name: str) -> "UpstreamLink":
        """The connection to an upstream. Raises: InputFault: no upstream has that name."""
        from engine.upstreams.link import UpstreamLink

        upstream = self.registry.get(name)
        link = self._links.get(name)
        if link is None or link.upstream != upstream:
            if link is not None:
                link.close()
            link = self._links[name] = UpstreamLink(upstream, self.registry)
        return link

    async def look(self, name: str | None = None) -> dict[str, Health]:
        names = [name] if name is not None else [u.name for u in self.registry.saved.upstreams]
        states = await asyncio.gather(*(self.link(n).look() for n in names))
        return dict(zip(names, states, strict=True))

    def runner(self, path: str) -> "UpstreamRunner":
        """A runner for a model of an upstream. Raises: InputFault: the upstream was removed."""
        from engine.upstreams.runner import UpstreamRunner

        name, _, model = path.removeprefix(PREFIX).partition("/")
        return UpstreamRunner(self.link(name), model, self.registry)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()
