"""Selects the files to download for a name and a plan."""

import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import msgspec

from engine.core.errors import InputFault
from engine.library.errors import NothingToDownload
from engine.library.hub.repository import generation_config_of, projectors_of
from engine.library.hub.types import Option, QuantVariant, RepoFile, RepoPlan, Repository
from engine.message_catalog.reasons import because
from quantize.plan.llama_cpp_preset_rules import USUAL_LABELS

# Forms in which users name something on a hub.

_REPO = re.compile(r"(?P<repo>[^/:\s]+/[^/:\s]+)(?:/(?P<file>[^:]+))?(?::(?P<label>[^/:]+))?")
_URL_FILE = re.compile(
    r"/(?P<repo>[^/]+/[^/]+)(?:/(?:resolve|blob|tree|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?"
)


class HubName(msgspec.Struct, frozen=True):
    """A repository and, if named, one of its quantizations or files, and a revision."""

    repo: str
    label: str | None = None
    file: str | None = None
    revision: str | None = None


def parse_hub_name(text: str) -> HubName:
    """Parse `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`, or the URL of a repository or a file.

    Raises: InputFault: it is none of these.
    """
    text = text.strip()
    if "://" in text:
        match = _URL_FILE.fullmatch(unquote(urlsplit(text).path))
        if match:
            return HubName(match["repo"], file=match["file"], revision=match["revision"])
    elif match := _REPO.fullmatch(text.removeprefix("hf.co/").removeprefix("huggingface.co/")):
        return HubName(match["repo"], match["label"], match["file"])
    raise InputFault(because("names_no_repository", text=text[:120]), "model")


def choose(plan: RepoPlan, name: HubName) -> Option:
    """The option that was named, else the best for this computer, else the most common quantization.

    Raises: NothingToDownload.
    """
    labels = tuple(option.choice.label for option in plan.options)
    if name.label is not None:
        option = plan.option(name.label)
    elif name.file is not None:
        file_name = name.file
        option = next((o for o in plan.options if any(f.name == file_name for f in o.choice.files)), None)
    else:
        by_label = {o.choice.label: o for o in plan.options}
        usual = next((by_label[label] for label in USUAL_LABELS if label in by_label), None)
        option = plan.best or usual or next(iter(plan.options), None)
    if option is None:
        raise NothingToDownload(plan.repository.repo, name.label or name.file or "a model", labels)
    return option


def files_of(repository: Repository, choice: QuantVariant, *, vision: bool = True) -> tuple[RepoFile, ...]:
    """Files to download for a choice, including the repository's vision projector and generation_config.json."""
    files = _with_projector(repository, choice, vision=vision)
    return (*files, *(f for f in generation_config_of(repository) if f not in files))


def _with_projector(repository: Repository, choice: QuantVariant, *, vision: bool) -> tuple[RepoFile, ...]:
    projectors = [f for f in projectors_of(repository) if not choice.files or f not in choice.files]
    if not vision or choice.format != "gguf" or not projectors:
        return choice.files
    home = PurePosixPath(choice.files[0].name).parent
    beside = [f for f in projectors if PurePosixPath(f.name).parent == home]
    half = [f for f in beside if "f16" in f.name.lower() and "bf16" not in f.name.lower()]
    picked = (half or beside)[:1]
    return (*choice.files, *picked)
