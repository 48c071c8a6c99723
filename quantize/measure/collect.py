"""Tasks of the measuring child that load the model: finding its groups, collecting second moments."""

import msgspec
import numpy as np

from quantize.evidence import MeasureRequest, Step
from quantize.files.imatrix import Importance, write_imatrix
from quantize.files.work_folder import Group, WorkFolder, read_json, write_array, write_json, writing_whole
from quantize.measure.moments import GroupTap, MomentSums, MomentTap, tokens_needed
from quantize.native.calibration import WINDOW, read_windows
from quantize.native.lane import Lane, Tokens
from quantize.native.reference import ReferenceModel
from quantize.native.source_weights import SourceWeights


class MomentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Collect the second moments of the groups of these names."""

    measure: MeasureRequest
    groups: tuple[str, ...]


def survey(request: MeasureRequest, send: Step) -> int:
    """Find which weights share an input, into the cache. Returns how many tokens moments will be collected from."""
    folder = WorkFolder.open(request)
    source = SourceWeights(request.source)
    with _load(request) as model:
        windows = read_windows(model, request.calibration, request.max_tokens)
        tap = GroupTap()
        model.run(windows[:1, :32], np.ones(32, np.bool_), tap)
        groups = tap.groups(source)
    tokens = min(int(windows.size), tokens_needed(groups) // WINDOW * WINDOW)
    write_json(folder.path / "tokens.json", tokens)
    write_json(folder.path / "groups.json", groups)
    send(1, 1, "")
    return tokens


def collect_moments(request: MomentsRequest, send: Step) -> int:
    """Evaluate the calibration text and write the groups' second moments. Returns tokens evaluated."""
    measure = request.measure
    folder = WorkFolder.open(measure)
    groups = [g for g in folder.groups() or () if g.name in request.groups]
    everywhere = np.ones(WINDOW, np.bool_)
    sums = MomentSums(groups)
    with _load(measure) as model:
        windows = read_windows(model, measure.calibration, read_json(folder.path / "tokens.json"), spread=True)

        def watch(lane: Lane, index: int, part: tuple[int, Tokens]) -> None:
            number, window = part
            try:
                lane.run(
                    window[None],
                    everywhere,
                    MomentTap(sums, number, range(number - index, number)),
                    drop_logits=True,
                )
            finally:
                sums.end(number)

        for done, _ in enumerate(model.side_by_side(list(enumerate(windows)), watch)):
            send(done, len(windows), f"{done * WINDOW} tokens")
    for group in groups:
        means = sums.means(group.name)
        diagonals = np.ascontiguousarray(means.diagonal(axis1=1, axis2=2))
        path = folder.part("moments", group.name, ".diagonal.npz")
        with writing_whole(path) as partial, partial.open("wb") as file:
            np.savez(file, mean=diagonals, tokens=sums.tokens[group.name])
        write_array(folder.part("moments", group.name, ".npy"), means)
    send(len(windows), len(windows), "")
    return int(windows.size)


def write_importance(folder: WorkFolder, groups: tuple[Group, ...], dataset: str) -> None:
    """The importance matrix of all groups whose diagonals are known, as llama.cpp's GGUF.

    A head that is tied to the embedding table is named as llama.cpp names heads, so that llama-quantize does with
    the table what it always does.
    """
    entries = {}
    for group in groups:
        found = folder.diagonals(group)
        if found is None:
            continue
        mean, tokens = found
        sums = (mean * tokens[:, None]).astype(np.float32)
        for name in group.members:
            key = "output.weight" if group.tied else name
            entries[key] = Importance(sums, tokens.astype(np.float32))
    write_imatrix(folder.imatrix, entries, dataset, WINDOW)


def _load(request: MeasureRequest) -> ReferenceModel:
    return ReferenceModel(request.source, window=WINDOW, threads=request.threads, gpu_layers=request.gpu_layers)
