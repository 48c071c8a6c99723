"""Opens everything that finds, places and loads models.

Needs no routes, so a model can load during their import.
"""

from functools import partial

import msgspec

from engine.library.catalogue import Catalogue
from engine.placement.external import open_programs
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.pool.loaded_model import EXTERNAL, REMOTE, SPREAD, Runner
from engine.pool.pool import Pool
from engine.remotes.service import Remotes
from engine.runner.process import USUAL_ENGINE, SpareRunner
from engine.server.canary import Canary
from engine.server.models import ServedModels
from engine.server.options import ServeOptions
from engine.upstreams.links import UpstreamLinks
from engine.upstreams.registry import UpstreamRegistry


class ModelSide(msgspec.Struct, frozen=True):
    """The model part of a server: models, placement, and the pool of loaded models."""

    models: ServedModels
    pool: Pool
    placer: Placer
    admission: MemoryAdmission
    links: UpstreamLinks
    remotes: Remotes
    canary: Canary


def open_model_side(options: ServeOptions, spare: SpareRunner) -> ModelSide:
    """Open the models for `options`. `spare` provides the runner of the first one."""
    resources = open_resources(options.paths)
    placer = Placer(resources)
    remotes = Remotes(resources.remotes)
    admission = MemoryAdmission(placer)
    links = UpstreamLinks(UpstreamRegistry(options.paths.config))
    models = ServedModels(
        partial(Catalogue, options.paths),
        options.context,
        resources.settings,
        options.paths.cache,
        placer.choose,
        options.overrides,
        options.lora,
        options.draft,
        links.registry,
        open_programs(options.paths),
    )

    async def start(engine: str, path: str) -> Runner:
        if engine == REMOTE:
            return links.runner(path)
        if engine == EXTERNAL:
            from engine.upstreams.external import ExternalRunner

            return ExternalRunner()
        if engine == SPREAD:
            from engine.remotes.runner import RemoteRunner

            return RemoteRunner(await spare.take(USUAL_ENGINE, path), remotes)
        return await spare.take(engine, path)

    pool = Pool(models, start, admission, models, options.ttl_s, options.max_models)
    canary = Canary(pool, placer, options.paths.state, enabled=options.canary)
    return ModelSide(models, pool, placer, admission, links, remotes, canary)
