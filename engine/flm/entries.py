"""FastFlowLM's installed models as entries of the library; they are not on any disk that Tessera looks at."""

from engine.flm.detect import PREFIX, TEMPLATE, detect, executable
from engine.library.types import Details, ModelEntry, Origin


def flm_entries() -> tuple[ModelEntry, ...]:
    """One entry a model; none where there is no `flm`. Asks its program: call off the event loop."""
    if executable() is None:
        return ()
    return tuple(
        ModelEntry(
            id=f"{PREFIX}{model.tag}",
            name=f"{model.tag} (FastFlowLM, NPU)",
            format="flm",
            files=(),
            origin=Origin(kind="linked", app="fastflowlm"),
            details=Details(
                architecture=model.family or "flm",
                title=" ".join(filter(None, (model.tag, model.parameters, model.quantization))),
                n_params=model.num_params,
                context_train=model.context,
                quantization=model.quantization or "NPU",
                chat_template=TEMPLATE,
                capabilities=("completion", "chat"),
            ),
            added_at=0.0,
            folder=f"{PREFIX}{model.tag}",
        )
        for model in detect().models
        if model.chats
    )
