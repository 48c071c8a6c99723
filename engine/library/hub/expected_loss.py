"""Estimates the loss of files on the hub from a sample of their rows, before anything is downloaded.

Some 1.5 % of the rows of each file are compared with the same rows of the original. The relative errors of the
tensors, multiplied by estimates of their sensitivity, give the expected KL divergence.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from devices.atomic_file import scratch_folder, write_atomically
from devices.msgspec_lock import learned
from engine.core.errors import BadModelFile, InputFault
from engine.core.paths import Paths
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.errors import RateLimited
from engine.library.hub.client import HubClient
from engine.library.hub.file_selection import HubName, parse_hub_name
from engine.library.hub.plan import HeaderReader, RemoteFile, listed
from engine.library.hub.repository import choices_of
from engine.library.hub.types import CompareTask, QuantVariant, RepoFile, Repository, UploadComparison, UploadLoss
from engine.library.inspect_files import gguf_details
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because
from quantize.child import ChildDied
from quantize.convert.row_numbers import CheckpointRows
from quantize.files import channel_scales, provenance
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.files.safetensors_file import read_safetensors_source
from quantize.ggml_types import NEARLY_EXACT, GgmlType, row_bytes
from quantize.measure.quick_loss import cached_quick_loss
from quantize.measure.row_errors import RowErrorsRequest, RowRun, SampledTensor, row_errors, sampled_runs
from quantize.plan.llama_cpp_preset_rules import USUAL_LABELS
from quantize.plan.priors import rows_loss
from quantize.plan.speed import model_spec
from quantize.tensor_rules import allows_quantization
from quantize.types import ModelSpec, TensorError, TensorSpec

_log = logging.getLogger(__name__)
# Increase when the sampled rows or the meaning of the errors change.
_VERSION = 1
_AT_ONCE = 12
# Ranges that are closer than this are read as one: a request costs more than these bytes.
_GAP_BYTES = 2048
_MAX_WAITS = 5
_LONGEST_WAIT_S = 300.0
# Limit of the sampled rows: a share of the file, or these bytes. A file of few, huge rows would be read as a whole.
_MOST_SHARE, _LITTLE_BYTES = 0.03, 1 << 20
# A relative error of all weights together as large as this means other weights, not rounding.
_OTHER_WEIGHTS = 0.7
# Quantizations that count as the original, the most exact ones first.
_ORIGINALS = ("F32", "BF16", "F16")
_EXACT_ORDER = (*_ORIGINALS, "safetensors", NEARLY_EXACT.name)
_MAX_CONFIG_BYTES = 1 << 20
_EXACT_BITS = 7.9
# llama-quantize names its importance matrix here. Source: llama.cpp, tools/quantize/quantize.cpp
_IMATRIX = "quantize.imatrix.file"
_VOCABULARY = ("token_embd.weight", "output.weight")


class _Range(NamedTuple):
    """Bytes of a model: the number of the file, the offset in it, and the length."""

    part: int
    offset: int
    nbytes: int


class _Upload(NamedTuple):
    """One quantized model on the hub whose headers were read."""

    repository: Repository
    choice: QuantVariant
    parts: tuple[GgufFile, ...]

    @property
    def name(self) -> str:
        return f"{self.repository.repo}:{self.choice.label}"

    def tensors(self) -> dict[str, tuple[int, TensorInfo]]:
        """Each tensor by name, with the number of its file."""
        return {t.name: (number, t) for number, part in enumerate(self.parts) for t in part.tensors}

    def spec(self) -> ModelSpec:
        """The facts about the model that the priors need."""
        tensors = tuple(TensorSpec(t.name, t.shape, t.ggml_type.name) for part in self.parts for t in part.tensors)
        return msgspec.structs.replace(model_spec(self.parts[0]), tensors=tensors)

    def text(self, key: str) -> str:
        """A metadata value that is text, else ""."""
        value = self.parts[0].metadata.get(key)
        return value if isinstance(value, str) else ""


class _Original(NamedTuple):
    """The model that the uploads are compared with: the shapes of its tensors and the positions of their rows.

    `find` returns the type of a tensor's values and the ranges of the rows of some runs, in their order.
    """

    repository: Repository
    choice: QuantVariant
    files: tuple[RepoFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    find: Callable[[str, Sequence[RowRun]], tuple[str, list[_Range]]]

    @property
    def name(self) -> str:
        return f"{self.repository.repo}:{self.choice.label}"

    @classmethod
    def of_gguf(cls, upload: _Upload) -> "_Original":
        tensors = upload.tensors()

        def find(name: str, runs: Sequence[RowRun]) -> tuple[str, list[_Range]]:
            part, tensor = tensors[name]
            return tensor.ggml_type.name, [_span(part, tensor, run) for run in runs]

        shapes = {name: tensor.shape for name, (_, tensor) in tensors.items()}
        return cls(upload.repository, upload.choice, upload.choice.files, shapes, find)

    @classmethod
    def of_safetensors(
        cls, repository: Repository, choice: QuantVariant, read: Callable[[RepoFile], RemoteFile]
    ) -> "_Original":
        """A folder of safetensors as the original; its rows are those that the converter would write.

        Raises: UnsupportedModel, BadFile, IncompleteFile: this is not possible.
        """
        shards = tuple(file for file in choice.files if file.name.endswith(".safetensors"))
        files = tuple(file for file in shards if file.name.startswith("model")) or shards
        config = next(file for file in choice.files if file.name == "config.json")
        with TemporaryDirectory(prefix="config") as folder:
            (Path(folder) / config.name).write_bytes(
                read(config).read_at(0, min(config.size_bytes, _MAX_CONFIG_BYTES))
            )
            rows = CheckpointRows(Path(folder), [read_safetensors_source(read(file)) for file in files])

        def find(name: str, runs: Sequence[RowRun]) -> tuple[str, list[_Range]]:
            numbers = [number for run in runs for number in range(run.first, run.first + run.count)]
            qtype, stored = rows.find(name, numbers)
            return qtype, [_Range(*row) for row in stored]

        return cls(repository, choice, files, rows.shapes(), find)


def _identity(files: Sequence[RepoFile]) -> str:
    """The hashes of the content; "" if the hub does not state them."""
    hashes = [file.sha256 or file.git_sha1 or "" for file in files]
    return "|".join(hashes) if all(hashes) else ""


def compare(client: HubClient, catalogue: Catalogue, task: CompareTask, control: JobContext) -> UploadComparison:
    """Estimate the loss of every upload; smallest file first.

    Raises: InputFault: no such upload, no original, or a server without range requests. Cancelled, Paused. The
    errors of HubClient.
    """
    control.report("planning", 0, 0)
    finder = _Finder(client, catalogue.paths, control)
    uploads = finder.uploads([parse_hub_name(name) for name in task.uploads], task.more)
    if not uploads:  # no header can be read
        return UploadComparison(original=task.original, uploads=finder.unread)
    original = finder.original(task.original, uploads)
    uploads = [upload for upload in uploads if upload.name != original.name]
    model, quick_kld = _tested(catalogue, uploads)
    job = _Job(client, catalogue.paths, original, control)
    losses, common = list(finder.unread), 1.0
    for upload, errors in job.errors(uploads):
        loss, factor = _loss(original, upload, errors, quick_kld)
        losses.append(loss)
        common = factor if loss.kld is not None else common
    losses.sort(key=lambda loss: (loss.size_bytes, loss.name))
    return UploadComparison(
        original=original.name,
        uploads=tuple(losses),
        common_factor=common,
        tested_by=model,
        fetched_bytes=finder.fetched_bytes + job.fetched_bytes,
        total_bytes=original.choice.size_bytes + sum(loss.size_bytes for loss in losses),
    )


def _loss(
    original: _Original,
    upload: _Upload,
    errors: tuple[TensorError, ...] | Reason,
    quick_kld: float | None,
) -> tuple[UploadLoss, float]:
    """The expected loss of an upload, or why there is none, and the factor common to all uploads."""
    weights = sum(t.num_values for _, t in upload.tensors().values())
    problem = errors if isinstance(errors, Reason) else _damage(original, errors)
    measured = () if isinstance(errors, Reason) else errors
    estimate, common = rows_loss(
        upload.spec(),
        measured,
        rounding=_rounding(upload),
        imatrix=bool(upload.text(_IMATRIX)),
        quick_kld=quick_kld,
    )
    loss = UploadLoss(
        repo=upload.repository.repo,
        label=upload.choice.label,
        size_bytes=upload.choice.size_bytes,
        bits_per_weight=8 * sum(t.nbytes for _, t in upload.tensors().values()) / max(1, weights),
        problem=sentence(problem) if problem else "",
        problem_detail=problem,
    )
    if problem is None:
        loss = msgspec.structs.replace(loss, kld=estimate.value, low=estimate.low, high=estimate.high)
    return loss, common


def _damage(original: _Original, errors: Sequence[TensorError]) -> Reason | None:
    broken = next((error.name for error in errors if not error.finite), None)
    if broken is not None:
        return because("upload_damaged", tensor=broken)
    if sum(error.error for error in errors) >= _OTHER_WEIGHTS * len(errors):
        return because("upload_of_other_weights", original=original.name)
    return None


def _rounding(upload: _Upload) -> str:
    """How Tessera rounded the file; "" for files of other programs."""
    try:
        origin = msgspec.json.decode(upload.text(provenance.KEY).strip(), type=learned(provenance.Provenance))
    except (ValueError, RecursionError):
        return ""
    return origin.rounding


def _tested(catalogue: Catalogue, uploads: Sequence[_Upload]) -> tuple[str, float | None]:
    """A model of the library with this shape that had a quick test, and its result."""
    if not uploads:
        return "", None
    details = gguf_details(uploads[0].parts[0], [t for _, t in uploads[0].tensors().values()])
    for entry in catalogue.entries():
        own = entry.details
        # Weights that were rounded before reveal little when rounded again.
        exact = entry.format == "gguf" and entry.bits_per_weight >= _EXACT_BITS
        if not exact or (own.architecture, own.n_params) != (details.architecture, details.n_params):
            continue
        tested = cached_quick_loss(entry.path, catalogue.paths.cache / "quantize")
        if tested is not None:
            return entry.id, tested.kld
    return "", None


class _Finder:
    """Finds the uploads to compare and their original, and reads their headers."""

    def __init__(self, client: HubClient, paths: Paths, control: JobContext) -> None:
        self._client = client
        self._paths = paths
        self._control = control
        self._readers: dict[str, HeaderReader] = {}
        self._unread: dict[str, UploadLoss] = {}
        self._other_bytes = 0

    @property
    def fetched_bytes(self) -> int:
        """Bytes of headers that were read."""
        return self._other_bytes + sum(reader.fetched_bytes for reader in self._readers.values())

    @property
    def unread(self) -> tuple[UploadLoss, ...]:
        """Files whose headers could not be read, with the reason."""
        return tuple(self._unread.values())

    def uploads(self, names: Iterable[HubName], more: int) -> list[_Upload]:
        """The named uploads, and as many others of the same original. Raises: InputFault: there is no such file."""
        by_name: dict[str, _Upload] = {}
        repositories: dict[str, Repository] = {}
        for name in names:
            repository = listed(self._client, self._paths, name.repo, name.revision)
            repositories[repository.repo] = repository
            chosen = _named_uploads(repository, name)
            by_name.update((remote.name, remote) for remote in self._read(repository, chosen))
        for repository in self._others(repositories, more):
            usual = sorted(_quantized(repository), key=_usual)
            by_name.update((remote.name, remote) for remote in self._read(repository, usual[:1]))
        return list(by_name.values())

    def original(self, name: str, uploads: Sequence[_Upload]) -> _Original:
        """The model to compare with: as named, else the most exact file next to the uploads or in their base.

        Raises: InputFault: there is none, or it cannot be read.
        """
        if name:
            hub = parse_hub_name(name)
            repository = listed(self._client, self._paths, hub.repo, hub.revision)
            choices = [choice for choice in choices_of(repository) if _matches(choice, hub)]
            candidates = [(repository, choice) for choice in _exact(choices, every=bool(hub.label or hub.file))]
        else:
            repositories = {upload.repository.repo: upload.repository for upload in uploads}
            bases = dict.fromkeys(r.base for r in repositories.values() if r.base and r.base not in repositories)
            everywhere = [*repositories.values(), *self._listed(bases)]
            candidates = [
                (repository, choice) for repository in everywhere for choice in _exact(choices_of(repository))
            ]
            candidates.sort(key=lambda candidate: _exactness(candidate[1]))
            name = everywhere[0].repo if everywhere else ""
        problem: InputFault = InputFault(because("no_original_found", repo=name), "original")
        for repository, choice in candidates:
            try:
                return self._original(repository, choice)
            except InputFault as error:  # another one may be readable
                shown = f"{repository.repo}:{choice.label}"
                problem = InputFault(because("original_not_read", name=shown, why=str(error)), "original")
        raise problem

    def _original(self, repository: Repository, choice: QuantVariant) -> _Original:
        """Raises: InputFault: its headers cannot be read or understood."""
        if choice.format == "safetensors":
            self._control.check()
            files: list[RemoteFile] = []

            def read(file: RepoFile) -> RemoteFile:
                files.append(RemoteFile(self._client, repository, file))
                return files[-1]

            try:
                return _Original.of_safetensors(repository, choice, read)
            finally:
                self._other_bytes += sum(file.fetched_bytes for file in files)
        uploads = self._read(repository, [choice])
        if not uploads:
            raise InputFault(self._unread.pop(f"{repository.repo}:{choice.label}").problem, "original")
        return _Original.of_gguf(uploads[0])

    def _listed(self, repos: Iterable[str]) -> list[Repository]:
        repositories = []
        for repo in repos:
            try:
                repositories.append(listed(self._client, self._paths, repo))
            except InputFault as error:  # gated, private or deleted: another one may be there
                _log.info("repository=%s not used: %s", repo, error)
        return repositories

    def _others(self, repositories: Mapping[str, Repository], more: int) -> list[Repository]:
        if not more:
            return []
        base = next((repository.base or repository.repo for repository in repositories.values()), "")
        hits = self._client.search(base=base, sort="downloads", limit=more + len(repositories))
        return self._listed([hit.repo for hit in hits if hit.repo not in repositories][:more])

    def _read(self, repository: Repository, choices: Sequence[QuantVariant]) -> list[_Upload]:
        self._control.check()
        reader = self._readers.get(repository.repo)
        if reader is None:
            # The uploads of a model have the same vocabulary, most of a header.
            arrays = next((each.arrays for each in self._readers.values() if each.arrays), None)
            reader = HeaderReader(self._client, self._paths, repository, arrays)
            self._readers[repository.repo] = reader
        headers = reader.headers(list(choices))
        uploads = []
        for choice in choices:
            parts = headers[choice.label]
            if isinstance(parts, str):
                unread = UploadLoss(
                    repo=repository.repo, label=choice.label, size_bytes=choice.size_bytes, problem=parts
                )
                self._unread[unread.name] = unread
            else:
                uploads.append(_Upload(repository, choice, parts))
        return uploads


def _quantized(repository: Repository) -> list[QuantVariant]:
    return [c for c in choices_of(repository) if c.format == "gguf" and c.label.upper() not in _ORIGINALS]


def _named_uploads(repository: Repository, name: HubName) -> list[QuantVariant]:
    chosen = [choice for choice in _quantized(repository) if _matches(choice, name)]
    if not chosen:
        labels = ", ".join(choice.label for choice in choices_of(repository)) or "-"
        label = name.label or name.file or "GGUF"
        raise InputFault(
            because("nothing_to_compare", repo=repository.repo, label=label, choices=labels), "uploads"
        )
    return chosen


def _matches(choice: QuantVariant, name: HubName) -> bool:
    if name.label is not None:
        return choice.label.casefold() == name.label.casefold()
    return name.file is None or any(file.name == name.file for file in choice.files)


def _usual(choice: QuantVariant) -> int:
    return USUAL_LABELS.index(choice.label) if choice.label in USUAL_LABELS else len(USUAL_LABELS)


def _exact(choices: Iterable[QuantVariant], *, every: bool = False) -> list[QuantVariant]:
    """The uploads that can replace the original, the most exact ones first; if `every`, all uploads."""
    exact = [choice for choice in choices if every or _exactness(choice) < len(_EXACT_ORDER)]
    return sorted(exact, key=_exactness)


def _exactness(choice: QuantVariant) -> int:
    label = choice.label if choice.format == "safetensors" else choice.label.upper()
    return _EXACT_ORDER.index(label) if label in _EXACT_ORDER else len(_EXACT_ORDER)


class _Plan(NamedTuple):
    """The ranges to read of an upload and of its original, and the rows in them."""

    upload: list[_Range]
    original: list[_Range]
    tensors: tuple[SampledTensor, ...]


class _Job:
    """Reads the samples and compares them; stores the errors of each file."""

    def __init__(self, client: HubClient, paths: Paths, original: _Original, control: JobContext) -> None:
        self._client = client
        self._cache = paths.cache / "hub" / "row_errors"
        self._original = original
        self._control = control
        self._done = self._total = 0
        self.fetched_bytes = 0

    def errors(self, uploads: Sequence[_Upload]) -> Iterator[tuple[_Upload, tuple[TensorError, ...] | Reason]]:
        """The errors of each upload, or the reason why it cannot be compared."""
        stored = {upload.name: self._recall(upload) for upload in uploads}
        plans: dict[str, _Plan] = {}
        for upload in uploads:
            if stored[upload.name] is None:
                plan = _plan(self._original, upload)
                if isinstance(plan, Reason):
                    stored[upload.name] = plan
                else:
                    plans[upload.name] = plan
        self._total = sum(span.nbytes for plan in plans.values() for span in plan.upload)
        self._total += sum(span.nbytes for plan in islice(plans.values(), 1) for span in plan.original)
        with scratch_folder(self._cache) as folder:
            exact = folder / "original"
            for upload in uploads:
                errors = stored[upload.name]
                if errors is None:
                    plan = plans[upload.name]
                    if not exact.exists():
                        self._fetch(self._original, self._original.files, plan.original, exact)
                    sample = folder / "upload"
                    self._fetch(upload, upload.choice.files, plan.upload, sample)
                    request = RowErrorsRequest(
                        sample=sample,
                        original=exact,
                        tensors=plan.tensors,
                        scales=upload.text(channel_scales.KEY),
                    )
                    try:
                        errors = row_errors(request, lambda _: None, lambda: self._control.stopping)
                        self._keep(upload, errors)
                    except ChildDied as error:  # ggml stops at bytes that it does not expect
                        errors = because("upload_not_decoded", why=str(error))
                self._control.check()
                yield upload, errors

    def _fetch(
        self, model: _Upload | _Original, files: Sequence[RepoFile], ranges: Sequence[_Range], out: Path
    ) -> None:
        """Write these ranges of a model's files to `out`, one after the other."""
        remote = [RemoteFile(self._client, model.repository, file) for file in files]
        begins = [0, *accumulate(span.nbytes for span in ranges)]
        merged = _merged(ranges)
        self._read(remote, merged[0][0])  # the other requests then know the storage's address
        pool = ThreadPoolExecutor(_AT_ONCE)
        with out.open("wb") as written:
            try:
                contents = pool.map(lambda each: self._read(remote, each[0]), merged)
                for (whole, members), raw in zip(merged, contents, strict=True):
                    for number in members:
                        _, offset, nbytes = ranges[number]
                        written.seek(begins[number])
                        written.write(raw[offset - whole.offset :][:nbytes])
                        self._done += nbytes
                    self._control.report("comparing", self._done, self._total, "bytes", model.name)
            finally:  # a slow server does not delay the end of a cancelled job
                pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, files: Sequence[RemoteFile], span: _Range) -> bytes:
        """One range. Raises: as RemoteFile; Paused, Cancelled; BadModelFile: the file ends earlier."""
        file = files[span.part]
        for waited in range(_MAX_WAITS + 1):
            self._control.check()
            try:
                raw = file.read_at(span.offset, span.nbytes)
            except RateLimited as error:
                if waited == _MAX_WAITS or error.retry_after_s > _LONGEST_WAIT_S:
                    raise
                self._control.wait(error.retry_after_s)
                continue
            if len(raw) != span.nbytes:
                ends = because("ends_early", have_bytes=file.size, needed_bytes=span.offset + span.nbytes)
                raise BadModelFile(file.name, ends)
            self.fetched_bytes += len(raw)
            return raw
        raise AssertionError

    def _path(self, upload: _Upload) -> Path | None:
        both = (_identity(self._original.files), _identity(upload.choice.files))
        name = hashlib.sha256(repr((_VERSION, *both)).encode()).hexdigest()
        return self._cache / f"{name}.json" if all(both) else None

    def _recall(self, upload: _Upload) -> tuple[TensorError, ...] | Reason | None:
        path = self._path(upload)
        try:
            raw = path.read_bytes() if path else b""
            return msgspec.json.decode(raw, type=learned(tuple[TensorError, ...]))
        except (OSError, ValueError, RecursionError):
            return None

    def _keep(self, upload: _Upload, errors: tuple[TensorError, ...]) -> None:
        path = self._path(upload)
        if path is not None:
            try:
                write_atomically(path, msgspec.json.encode(errors), durable=False)
            except OSError as error:
                _log.info("errors not stored: %s", error)


def _plan(original: _Original, upload: _Upload) -> _Plan | Reason:
    """The ranges to read, or the reason why the two cannot be compared."""
    others = upload.tensors()
    ranges: list[_Range] = []
    exact: list[_Range] = []
    sampled: list[SampledTensor] = []
    begin = original_begin = 0
    for name, shape in original.shapes.items():
        if not allows_quantization(TensorSpec(name, shape, GgmlType.F16.name)):
            continue
        part, tensor = others.get(name, (0, None))
        if tensor is None or not _same_rows(name, shape, tensor.shape):
            return because("upload_of_other_model", tensor=name, original=original.name)
        runs = sampled_runs(name, shape[0], prod(tensor.shape[1:]))
        original_qtype, tensor_spans = original.find(name, runs)
        sampled.append(
            SampledTensor(
                name=name,
                width=shape[0],
                runs=runs,
                qtype=tensor.ggml_type.name,
                begin=begin,
                original_qtype=original_qtype,
                original_begin=original_begin,
            )
        )
        own = [_span(part, tensor, run) for run in runs]
        ranges += own
        exact += tensor_spans
        begin += sum(span.nbytes for span in own)
        original_begin += sum(span.nbytes for span in tensor_spans)
    for spans, size_bytes in ((ranges, upload.choice.size_bytes), (exact, original.choice.size_bytes)):
        if sum(span.nbytes for span in spans) > max(_MOST_SHARE * size_bytes, _LITTLE_BYTES):
            return because("upload_rows_too_long", percent=round(100 * _MOST_SHARE))
    return _Plan(ranges, exact, tuple(sampled))


def _same_rows(name: str, original: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether the rows mean the same: folders may pad the vocabulary."""
    padded = name in _VOCABULARY and len(original) == len(other) and original[1] > other[1]
    return original == other or (padded and original[0] == other[0])


def _span(part: int, tensor: TensorInfo, run: RowRun) -> _Range:
    size = row_bytes(tensor.shape[0], tensor.ggml_type)
    return _Range(part, tensor.offset + run.first * size, run.count * size)


def _merged(ranges: Sequence[_Range]) -> list[tuple[_Range, list[int]]]:
    """Merge ranges that are close to each other; each result has the numbers of its members."""
    merged: list[tuple[_Range, list[int]]] = []
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        span = ranges[number]
        whole, members = merged[-1] if merged else (None, [])
        if whole is None or whole.part != span.part or span.offset - whole.offset - whole.nbytes > _GAP_BYTES:
            merged.append((span, [number]))
        else:
            end = max(whole.offset + whole.nbytes, span.offset + span.nbytes)
            merged[-1] = (_Range(whole.part, whole.offset, end - whole.offset), [*members, number])
    return merged
