"""The file Tessera would quantize itself instead of fetching a ready one: its size and the damage to expect."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.library.hub.types import OwnBuild
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.ggml_types import GgmlType
from quantize.plan.model_spec import model_spec
from quantize.plan.plan import Question, make_plan, model_damage
from quantize.plan.priors import prior_damage
from quantize.types import EvidenceRef, Goal, ModelSpec, TensorSpec

_log = logging.getLogger(__name__)
# Where no ready file sets the size: bits a weight of Q6_K, whose damage is close to what can be measured at all.
_BITS_WITHOUT_A_RIVAL = 6.6
# Raised when the priors or the solver change, so that kept builds are made again.
VERSION = 1
NOTE = "shipped priors; nothing of this model was measured"


def own_build(
    source: str,
    unquantized: Sequence[GgufFile],
    rival: tuple[str, Sequence[GgufFile]] | None,
    limit_bytes: int | None,
) -> OwnBuild | None:
    """The best mix within `limit_bytes` of the whole file; None where no mix is that small.

    `unquantized` are headers of the model in its source's types, or of any quantization of it: names and shapes are
    the same, and what is quantized there counts as F16. `rival` is the ready file to compare with.
    """
    tensors = [tensor for part in unquantized for tensor in part.tensors]
    spec = msgspec.structs.replace(model_spec(unquantized[0]), tensors=tuple(map(_as_source, tensors)))
    header_bytes = sum(part.file_bytes for part in unquantized) - sum(t.nbytes for t in tensors)
    damage = prior_damage(spec)
    evidence = EvidenceRef(tier="instant", has_imatrix=False, note=NOTE)
    question = Question(
        model=spec, damage=damage, evidence=evidence, header_bytes=max(0, header_bytes), with_stock=False
    )
    goal = (
        Goal(kind="budget", limit_bytes=limit_bytes) if limit_bytes else Goal(kind="bpw", bpw=_BITS_WITHOUT_A_RIVAL)
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
    """The build kept in `folder` for these facts (hashes of files, a limit), or a new one, then kept."""
    path = folder / f"{hashlib.sha256(repr((VERSION, *facts)).encode()).hexdigest()}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=learned(OwnBuild | None))
    except (OSError, ValueError, RecursionError):
        made = build()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(made))
    except OSError as error:
        _log.info("own build not kept: %s", error)
    return made


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
