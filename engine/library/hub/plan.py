"""Plans a repository: memory and expected speed of every quantization, before anything is downloaded."""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import msgspec

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.core.paths import Paths
from engine.library.errors import HubUnreachable
from engine.library.hub import header_cache
from engine.library.hub.client import HubClient
from engine.library.hub.repository import choices_of, first_paragraph
from engine.library.hub.types import FitEstimate, Option, OwnBuild, QuantVariant, RepoFile, RepoPlan, Repository
from engine.library.inspect_files import gguf_details
from engine.library.types import Details
from engine.message_catalog.reasons import because
from quantize.errors import BadFile
from quantize.files.gguf_file import Entry, GgufFile, TensorInfo, read_gguf_source
from quantize.ggml_types import GgmlType
from quantize.plan.plan import PlanInput, make_plan, model_damage
from quantize.plan.priors import prior_damage
from quantize.plan.speed import model_spec
from quantize.types import EvidenceRef, ModelSpec, SizeTarget, TensorSpec

# Local quantization instead of a ready-made file: its size and expected KL divergence.

# The size if no ready-made file sets it: bits per weight of Q6_K, whose loss is close to the limit of measurement.
_BITS_WITHOUT_A_RIVAL = 6.6
# Increase when the priors or the solver change, so that cached results are computed again.
VERSION = 2
NOTE = "shipped priors; nothing of this model was measured"


def own_build(
    source: str,
    unquantized: Sequence[GgufFile],
    rival: tuple[str, Sequence[GgufFile]] | None,
    limit_bytes: int | None,
) -> OwnBuild | None:
    """The best quantization recipe within `limit_bytes` for the whole file; None if no recipe is that small.

    `unquantized` are headers of the model in its source's types, or of any quantization of it. Names and shapes are
    the same; quantized tensors count as F16. `rival` is the ready-made file to compare with.
    """
    tensors = [tensor for part in unquantized for tensor in part.tensors]
    spec = msgspec.structs.replace(model_spec(unquantized[0]), tensors=tuple(map(_as_source, tensors)))
    header_bytes = sum(part.file_bytes for part in unquantized) - sum(t.nbytes for t in tensors)
    damage = prior_damage(spec)
    evidence = EvidenceRef(tier="instant", has_imatrix=False, note=NOTE)
    question = PlanInput(
        model=spec, damage=damage, evidence=evidence, header_bytes=max(0, header_bytes), with_stock=False
    )
    goal = (
        SizeTarget(kind="budget", limit_bytes=limit_bytes)
        if limit_bytes
        else SizeTarget(kind="bpw", bpw=_BITS_WITHOUT_A_RIVAL)
    )
    try:
        plan = make_plan(question, goal)
    except (TesseraError, KeyError, ValueError) as error:
        _log.info("no own build of %s: %s", unquantized[0].name, error)
        return None
    return OwnBuild(
        based_on=NOTE,
        source=source,
        file_bytes=plan.file_bytes,
        bits_per_weight=plan.bpw,
        kld=plan.damage,
        instead_of=rival[0] if rival else None,
        ready_kld=_ready_damage(spec, rival[1], damage) if rival else None,
    )


def remembered(folder: Path, facts: tuple[object, ...], build: Callable[[], OwnBuild | None]) -> OwnBuild | None:
    """The cached result in `folder` for these facts (hashes of files, a limit), else a new one, which is cached."""
    path = folder / f"{hashlib.sha256(repr((VERSION, *facts)).encode()).hexdigest()}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=learned(OwnBuild | None))
    except (OSError, ValueError, RecursionError):
        offer = build()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(offer))
    except OSError as error:
        _log.info("own build not kept: %s", error)
    return offer


def _as_source(tensor: TensorInfo) -> TensorSpec:
    is_float = tensor.ggml_type in {GgmlType.F32, GgmlType.F16, GgmlType.BF16}
    return TensorSpec(tensor.name, tensor.shape, tensor.ggml_type.name if is_float else GgmlType.F16.name)


def _ready_damage(
    spec: ModelSpec, parts: Sequence[GgufFile], damage: Mapping[str, Mapping[str, float]]
) -> float | None:
    types = {tensor.name: tensor.ggml_type for part in parts for tensor in part.tensors}
    if types.keys() != {tensor.name for tensor in spec.tensors}:
        return None
    return model_damage(spec, types, damage)


_log = logging.getLogger(__name__)
_CARD = "README.md"
_MAX_CARD_BYTES = 64 * 1024
_AT_ONCE = 12
# Cache time of a repository's file list; `refresh` requests it again.
_LISTING_S = 600.0
_ENOUGH_BITS = 7.0  # Q6_K has 6.6
_EXACT_BITS = 7.9  # Q8_0 has 8.5. Original MXFP4 files have fewer bits: they are already quantized


# Estimates whether a model fits, from the headers of its parts; None if no estimate is possible.
FitEstimator = Callable[[tuple[GgufFile, ...], Details], FitEstimate | None]


def plan_repository(
    client: HubClient,
    paths: Paths,
    repo: str,
    *,
    revision: str | None = None,
    estimate: FitEstimator | None = None,
    refresh: bool = False,
) -> RepoPlan:
    """Read the headers of every quantization and estimate whether each fits.

    Most of a header is the vocabulary, so it is read once and skipped in the other files. Their headers must then
    account for every byte of the file; otherwise they are read in full.

    Raises: the errors of HubClient.
    """
    begin = time.monotonic()
    repository = listed(client, paths, repo, revision, refresh=refresh)
    reader = HeaderReader(client, paths, repository)
    choices = choices_of(repository)
    ggufs = [choice for choice in choices if choice.format == "gguf"]
    headers = reader.headers(ggufs)
    options = [_option(choice, headers.get(choice.label), estimate) for choice in choices]
    options = _mark_best(options)
    build_from = _build_from(options)
    own = _own_build(options, headers, build_from, paths.cache / "hub" / "own") if estimate else None
    return RepoPlan(
        repository=repository,
        options=tuple(options),
        fetched_bytes=reader.fetched_bytes,
        elapsed_s=time.monotonic() - begin,
        build_from=build_from,
        own=own,
    )


def listed(
    client: HubClient, paths: Paths, repo: str, revision: str | None = None, *, refresh: bool = False
) -> Repository:
    """The repository's files, from the cache if that is recent. Raises: the errors of HubClient."""
    key = f"{client.endpoint}|{repo}|{revision or ''}|{bool(client.token)}"
    name = "".join(c if c.isalnum() else "_" for c in key)[-180:]
    path = paths.cache / "hub" / "repositories" / f"{name}.json"
    if not refresh:
        recalled = _recall_listing(path, repo)
        if recalled is not None:
            return recalled
    repository = client.repository(repo, revision)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(repository))
    except OSError as error:
        _log.info("listing not kept: %s", error)
    return repository


def _recall_listing(path: Path, repo: str) -> Repository | None:
    try:
        if not 0 <= time.time() - path.stat().st_mtime < _LISTING_S:
            return None
        repository = msgspec.json.decode(path.read_bytes(), type=learned(Repository))
    except (OSError, ValueError, RecursionError):
        return None
    return repository if repository.repo == repo else None


def about(client: HubClient, paths: Paths, repository: Repository) -> str:
    """The first paragraph of the repository's model card; "" if there is none or it cannot be read."""
    card = next((file for file in repository.files if file.name == _CARD), None)
    if card is None:
        return ""
    digest = card.git_sha1 or card.sha256
    path = paths.cache / "hub" / "about" / f"{digest}.txt"
    with contextlib.suppress(OSError, ValueError):
        if digest:
            return path.read_text(encoding="utf-8")
    source = RemoteFile(client, repository, card)
    try:
        raw = source.read_at(0, _MAX_CARD_BYTES)
    except TesseraError as error:
        _log.info("no model card of %s: %s", repository.repo, error)
        return ""
    text = first_paragraph(raw.decode("utf-8", "replace"))
    if not digest:
        return text
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.info("model card not cached: %s", error)
    return text


class HeaderReader:
    """Reads the headers of a repository's files with as few bytes as possible.

    `arrays` are entries of a file that probably has the same vocabulary; the first one read, unless they are given.
    """

    def __init__(
        self,
        client: HubClient,
        paths: Paths,
        repository: Repository,
        arrays: Mapping[str, Entry] | None = None,
    ) -> None:
        self._client = client
        self._cache = paths.cache / "hub" / "headers"
        self._repository = repository
        self.arrays = arrays or {}
        self.fetched_bytes = 0

    def headers(self, choices: list[QuantVariant]) -> dict[str, tuple[GgufFile, ...] | str]:
        """For each label, the headers of all its parts, or the reason why they could not be read."""
        result: dict[str, tuple[GgufFile, ...] | str] = {}
        remaining = list(choices)
        while remaining and not self.arrays:  # until one vocabulary is read
            choice = remaining.pop(0)
            header = self._choice(choice, {})
            result[choice.label] = header
            if not isinstance(header, str):
                self.arrays = header[0].entries
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            remaining_headers = pool.map(lambda choice: self._choice(choice, self.arrays), remaining)
        result.update(zip([choice.label for choice in remaining], remaining_headers, strict=True))
        return result

    def _choice(self, choice: QuantVariant, arrays: Mapping[str, Entry]) -> tuple[GgufFile, ...] | str:
        try:
            return tuple(self._file(file, arrays) for file in choice.files)
        except BadFile as error:
            return error.reason
        except TesseraError as error:
            return str(error)

    def _file(self, file: RepoFile, arrays: Mapping[str, Entry]) -> GgufFile:
        cached = header_cache.recall(self._cache, file.sha256, file.name) if file.sha256 else None
        if cached is not None:
            return cached
        source = RemoteFile(self._client, self._repository, file)
        try:
            try:
                header = read_gguf_source(source, cached_arrays=arrays)
            except BadFile:
                if not arrays:
                    raise
                header = read_gguf_source(source)
        finally:
            self.fetched_bytes += source.fetched_bytes
        if file.sha256:
            header_cache.keep(self._cache, file.sha256, header)
        return header


def _option(
    choice: QuantVariant, header: tuple[GgufFile, ...] | str | None, estimate: FitEstimator | None
) -> Option:
    if header is None:
        return Option(choice=choice, size_bytes=choice.size_bytes)
    if isinstance(header, str):
        return Option(choice=choice, size_bytes=choice.size_bytes, problem=header)
    tensors: list[TensorInfo] = [tensor for part in header for tensor in part.tensors]
    details = gguf_details(header[0], tensors)
    bits = sum(t.nbytes for t in tensors) * 8 / details.n_params if details.n_params else 0.0
    verdict = estimate(header, details) if estimate else None
    return Option(
        choice=choice, size_bytes=choice.size_bytes, details=details, bits_per_weight=bits, verdict=verdict
    )


def _mark_best(options: list[Option]) -> list[Option]:
    """Mark the largest option that fits, up to the size beyond which quality no longer improves measurably.

    Source: at Q6_K (6.6 bits per weight) the loss is close to the limit of what tests can measure (llama.cpp's
    quantize README), while every byte costs speed. A larger file is therefore the best only if it is the only one.
    """
    fitting = [o for o in options if o.verdict and o.verdict.fits and o.choice.format == "gguf"]
    whole = [o for o in fitting if o.verdict and not o.verdict.streamed]
    if fitting and not whole:  # the disk limits the speed, so prefer the smallest file
        smallest = min(fitting, key=lambda o: o.choice.size_bytes)
        return [msgspec.structs.replace(o, best=o is smallest) for o in options]
    fitting = whole
    modest = [o for o in fitting if o.bits_per_weight <= _ENOUGH_BITS]
    pool = modest or sorted(fitting, key=lambda o: o.choice.size_bytes)[:1]
    if not pool:
        return options
    best = max(pool, key=lambda o: o.choice.size_bytes)
    return [msgspec.structs.replace(o, best=o is best) for o in options]


def _build_from(options: list[Option]) -> str | None:
    """Label of the most exact option, as the source for local quantization; None if no option is exact enough."""
    exact = [o for o in options if o.choice.format == "safetensors" or o.bits_per_weight >= _EXACT_BITS]
    return max(exact, key=lambda o: (o.bits_per_weight, o.choice.size_bytes)).choice.label if exact else None


def _own_build(
    options: list[Option], headers: Mapping[str, tuple[GgufFile, ...] | str], source: str | None, folder: Path
) -> OwnBuild | None:
    """Local quantization of the best ready-made file's size, else of the size that fits into memory."""
    readable = {label: header for label, header in headers.items() if not isinstance(header, str)}
    shape = readable.get(source or "") or next(iter(readable.values()), None)
    if source is None or shape is None:
        return None
    best = next((o for o in options if o.best and o.choice.label != source), None)
    rival = (best.choice.label, readable[best.choice.label]) if best else None
    limit_bytes = best.choice.size_bytes if best else _available_bytes(options)
    if limit_bytes is not None and limit_bytes <= 0:
        return None
    involved = [o.choice for o in options if o is best or o.choice.label == source]
    hashes = [(c.label, [(f.name, f.sha256, f.git_sha1) for f in c.files]) for c in involved]
    return remembered(folder, (hashes, limit_bytes), lambda: own_build(source, shape, rival, limit_bytes))


def _available_bytes(options: list[Option]) -> int | None:
    """Maximum size of a local quantization if no ready-made file is the best; None if memory sets no limit."""
    judged = [o for o in options if o.verdict is not None and o.choice.format == "gguf"]
    smallest = min(judged, key=lambda o: o.choice.size_bytes, default=None)
    if smallest is None or smallest.verdict is None:
        return 0
    beside_bytes = smallest.verdict.needed_bytes - smallest.choice.size_bytes
    available_bytes = smallest.verdict.available_bytes - beside_bytes
    enough_bytes = smallest.details.n_params * _ENOUGH_BITS / 8 if smallest.details else 0
    return None if smallest.verdict.fits and available_bytes >= enough_bytes else available_bytes


_ATTEMPTS = 3


class RemoteFile:
    """Reads byte ranges of a remote file over HTTP; `fetched_bytes` counts the downloaded bytes."""

    def __init__(self, client: HubClient, repository: Repository, file: RepoFile) -> None:
        self._client = client
        self._repo = repository.repo
        self._url = client.file_url(repository.repo, repository.revision, file.name)
        self._file = file
        self.fetched_bytes = 0

    @property
    def name(self) -> str:
        return f"{self._repo}/{self._file.name}"

    @property
    def size(self) -> int:
        """Size in the hub's file list."""
        return self._file.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes [offset, offset + length), fewer at the end of the file.

        Raises: HubUnreachable, Offline, RateLimited, GatedRepository, RepositoryNotFound.
        """
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                return self._fetch(offset, end)
            except httpx2.TransportError as error:
                problem = type(error).__name__
        raise HubUnreachable(self._client.endpoint, problem)

    def _fetch(self, start: int, end: int) -> bytes:
        with self._client.stream(self._url, self._repo, start, end) as response:
            self._url = str(response.url)  # storage, after the redirect: the next read skips the redirect
            if response.status_code != httpx2.codes.PARTIAL_CONTENT and (start, end) != (0, self.size):
                raise InputFault(because("no_ranges", file=self.name), "repo")
            expected = f"bytes {start}-{end - 1}/"
            if not response.headers.get("Content-Range", expected).startswith(expected):
                raise HubUnreachable(self._client.endpoint, f"other bytes of {self.name} than requested were sent")
            chunks = []
            missing = end - start
            for chunk in response.iter_raw():
                chunks.append(chunk[:missing])
                self.fetched_bytes += len(chunk)
                missing -= len(chunks[-1])
                if missing <= 0:
                    break
            if missing:
                raise httpx2.RemoteProtocolError("the answer ended early")
        return b"".join(chunks)
