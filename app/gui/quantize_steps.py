"""The steps of making a model fit, as one bar and six steps in plain words."""

from PySide6.QtCore import QCoreApplication

from engine.api.jobs import Progress

# Phases of quantize.job.execute and of its workers by step.
_STEPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("reading the model", frozenset({"read", "hash", "convert", "prepare", ""})),
    ("learning how it is used", frozenset({"smooth", "survey", "moments"})),
    ("measuring damage", frozenset({"measure", "errors", "alpha"})),
    ("choosing precisions", frozenset({"plan"})),
    ("writing the file", frozenset({"round", "write"})),
    ("checking the result", frozenset({"verify", "gate"})),
)


def step_words(phase: str) -> str:
    """`Step 3 of 6: measuring damage`."""
    position = _position(phase)
    words = _tr("Step {n} of {total}: {what}")
    return words.format(n=position + 1, total=len(_STEPS), what=_tr(_STEPS[position][0]))


def share(progress: Progress) -> float:
    """How much of the whole is done, 0 to 1: the job counts its phases by the time each should take."""
    return min(progress.done / progress.total, 1.0) if progress.total else 0.0


def _position(phase: str) -> int:
    return next((n for n, (_, phases) in enumerate(_STEPS) if phase in phases), 2)


def _tr(text: str) -> str:
    return QCoreApplication.translate("fit", text)
