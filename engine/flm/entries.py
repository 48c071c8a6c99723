"""FastFlowLM's installed models as entries of the library; they are not on any disk that Tessera looks at."""

from engine.flm.detect import PREFIX, TEMPLATE, detect, executable
from engine.library.types import Details, ModelEntry, Origin


def flm_entries() -> tuple[ModelEntry, ...]:
    """One entry a model; none where there is no `flm`. Asks its program: call off the event loop."""
    if executable() is None:
        return ()
    details = Details(
        architecture="flm", quantization="NPU", chat_template=TEMPLATE, capabilities=("completion", "chat")
    )
    return tuple(
        ModelEntry(
            id=f"{PREFIX}{tag}",
            name=f"{tag} (FastFlowLM, NPU)",
            format="flm",
            files=(),
            origin=Origin(kind="linked", app="fastflowlm"),
            details=details,
            added_at=0.0,
            folder=f"{PREFIX}{tag}",
        )
        for tag in detect().models
    )
