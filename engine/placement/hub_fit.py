"""The library's question about a file it has not fetched: does it fit here, and how fast would it be?"""

from collections.abc import Callable

from engine.library.hub.plan import FitEstimator
from engine.library.hub.types import FitEstimate
from engine.library.types import Details
from engine.message_catalog.reasons import Reason
from engine.placement.load_settings import default_context
from engine.placement.placer import Placer
from engine.placement.shape import shape_of
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import GgufFile


def fit_estimator(placer: Placer, describe: Callable[[Reason], str] | None = None) -> FitEstimator:
    """An estimator that counts what the ledger has promised; by formulas, as it is asked about dozens of files.

    `describe` puts its reasons into words; without it there are none.
    """

    def estimate(parts: tuple[GgufFile, ...], details: Details) -> FitEstimate | None:
        tensors = [tensor for part in parts for tensor in part.tensors]
        shape = shape_of(parts[0], tensors, sum(part.file_bytes for part in parts))
        if not shape.layers or details.is_projector:
            return None
        settings = LoadSettings(path=parts[0].name, n_ctx=default_context(shape.context_train))
        placement = placer.judge_shape(parts[0].name, shape, settings)
        need = placement.need
        return FitEstimate(
            fits=placement.fits,
            needed_bytes=need.total_bytes,
            available_bytes=sum(placer.ledger.available(device) for device in need.devices),
            decode_tok_s=placement.decode_tok_s,
            device=placement.device_name,
            reasons=tuple(map(describe, placement.reasons)) if describe is not None else (),
            measured_on=placement.measured_on,
            streamed=placement.streaming is not None,
        )

    return estimate
