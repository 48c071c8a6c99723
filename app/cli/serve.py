"""`tessera serve`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from app.cli.settings_defaults import Number, SettingDefault, TokenCount, obey_offline
from quantize.kv_cache_types import CACHE_TYPES

if TYPE_CHECKING:
    import logging
    from io import TextIOWrapper

    from engine.placement.types import Mode

_LOG_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
_LOG_BYTES = 4 << 20
_OLD_LOGS = 3


@click.command(help="Serve models over HTTP, with OpenAI's API at /v1. The page /docs lists all routes.")
@click.option("--host", default=SettingDefault("server.host"), help="Address to listen on.")
@click.option(
    "--port",
    default=SettingDefault("server.port"),
    type=click.IntRange(0, 65535),
    help="Port; 0 picks one.",
)
@click.option("--api-key", "api_keys", multiple=True, envvar="TESSERA_API_KEY", help="Key that clients must send.")
@click.option("--allow-host", "hosts", multiple=True, help="Additional host name of this server.")
@click.option("--allow-origin", "origins", multiple=True, help="Web page origin that may use this server.")
@click.option(
    "--containers/--no-containers",
    default=True,
    show_default=True,
    help="Accept the host names that containers use, such as host.docker.internal.",
)
@click.option(
    "--apps/--no-apps", default=True, show_default=True, help="Accept pages of installed apps and editors."
)
@click.option(
    "--local-pages/--no-local-pages",
    default=False,
    show_default=True,
    help="Accept pages of any port of this computer.",
)
@click.option("--model", help="Load this model while the server starts; 'default': the model of new chats.")
@click.option(
    "--ctx",
    "context",
    type=TokenCount(16, 1 << 24),
    default=SettingDefault("models.context", "as fits"),
    help="Context in tokens for loaded models. It becomes larger only if a client requests a size.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 128),
    default=SettingDefault("models.parallel", "as fits"),
    help="Requests a model answers at the same time.",
)
@click.option(
    "--kv",
    type=click.Choice(tuple(CACHE_TYPES), case_sensitive=False),
    default=SettingDefault("models.cache_type", "as fits"),
    help="KV cache type.",
)
@click.option(
    "--device",
    default=SettingDefault("models.device", "Tessera chooses"),
    help="Pin a device id, a kind (cpu, igpu, dgpu) or a backend (vulkan, cuda, ...).",
)
@click.option(
    "--mode",
    type=click.Choice(["quiet", "balanced", "fast"], case_sensitive=False),
    default="balanced",
    help="How much of the computer to use.",
)
@click.option(
    "--ttl",
    "ttl_s",
    type=Number(0, 1e9),
    default=SettingDefault("models.keep_alive"),
    help="Seconds until an idle model is unloaded; 0: never.",
)
@click.option(
    "--max-models",
    type=click.IntRange(1, 1000),
    default=SettingDefault("models.max_loaded", "as fit"),
    help="Maximum number of loaded models; idle ones are unloaded first.",
)
@click.option(
    "--lora", "lora", multiple=True, metavar="MODEL=FILE", help="LoRA adapter (GGUF) loaded with a model."
)
@click.option("--draft", help="Small model that drafts tokens for all models with its vocabulary.")
@click.option(
    "--tls-cert", type=click.Path(path_type=Path), help="Certificate (PEM); the server then accepts only TLS."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="The certificate's private key (PEM).")
@click.option("--private", "parent", type=int, hidden=True, help="Serve only the process with this id.")
@click.pass_context
def command(
    ctx: click.Context,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    containers: bool,
    apps: bool,
    local_pages: bool,
    model: str | None,
    context: int | None,
    parallel: int | None,
    kv: str | None,
    device: str | None,
    mode: "Mode",
    ttl_s: float,
    max_models: int | None,
    lora: tuple[str, ...],
    draft: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    parent: int | None,
) -> None:
    """Serve until interrupted."""
    import logging

    from app.cli.settings_defaults import checked_settings
    from app.evals.gate_tasks import NAMED_TASKS
    from app.settings import keep_models_folder
    from engine.core.paths import user_paths
    from engine.placement.pins import check_pin
    from engine.placement.resources import open_resources
    from engine.placement.types import PlacementLimits
    from engine.runner.orphans import die_with_parent
    from engine.server.options import ServeOptions
    from engine.server.run import serve

    level = logging.DEBUG if ctx.obj and ctx.obj["debug"] else logging.INFO
    logging.basicConfig(level=level, format=_LOG_LINE)
    if parent is None and "TESSERA_OWN_LOG" not in os.environ:
        _log_to_file(logging.getLogger())
    if parent is not None:
        die_with_parent(parent)
    obey_offline()
    # A device in the settings may become available again. An unknown name on the command line is a mistake.
    if device is not None and ctx.get_parameter_source("device") is ParameterSource.COMMANDLINE:
        check_pin(open_resources(user_paths()).machine.full(), device)
    serve(
        ServeOptions(
            host=host,
            port=port,
            api_keys=api_keys,
            hosts=hosts,
            origins=origins,
            containers=containers,
            apps=apps,
            local_pages=local_pages,
            context=context,
            model=model,
            overrides=PlacementLimits(n_parallel=parallel, type_k=kv, device=device, mode=mode),
            ttl_s=ttl_s or None,
            max_models=max_models,
            lora=tuple(_adapter(choice) for choice in lora),
            draft=draft,
            canary=checked_settings().flag("models.compare_answers"),
            tls_cert=tls_cert,
            tls_key=tls_key,
            private=parent is not None,
            named_tasks=NAMED_TASKS,
            keep_models_folder=keep_models_folder,
        )
    )


def _log_to_file(root: "logging.Logger") -> None:
    """Also write the log to a file that only this user can read; the file is rotated by size."""
    import logging.handlers

    from app.server_process import server_log

    class PrivateFile(logging.handlers.RotatingFileHandler):
        def _open(self) -> "TextIOWrapper":
            os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
            return super()._open()

    path = server_log()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = PrivateFile(path, maxBytes=_LOG_BYTES, backupCount=_OLD_LOGS, encoding="utf-8", errors="replace")
    except OSError as error:
        root.warning("no log file: %s", error)
        return
    handler.setFormatter(logging.Formatter(_LOG_LINE))
    root.addHandler(handler)


def _adapter(choice: str) -> tuple[str, str]:
    """Parse one `--lora`: model and adapter file."""
    model, _, file = choice.partition("=")
    if not model or not Path(file).is_file():
        raise click.BadParameter(f"{choice!r} is not MODEL=FILE with a file that exists.", param_hint="--lora")
    return model, str(Path(file).resolve())
