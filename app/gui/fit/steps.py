"""The steps of making a model fit, as one bar: six steps, each with its share of the whole."""

from PySide6.QtCore import QCoreApplication

from engine.api.jobs import Job, Progress

# Phases of quantize.job.execute and of its workers by step, with the share of the time they usually take.
# Estimated from runs of small models: the bar is a forecast, the phases tell what is really done.
_STEPS: tuple[tuple[str, frozenset[str], float], ...] = (
    ("reading the model", frozenset({"read", "hash", "convert", "prepare", ""}), 0.03),
    ("learning how it is used", frozenset({"survey", "moments", "imatrix", "collect"}), 0.12),
    ("measuring damage", frozenset({"measure", "errors", "damage", "sensitivity", "alpha"}), 0.4),
    ("choosing precisions", frozenset({"plan"}), 0.02),
    ("writing the file", frozenset({"round", "write"}), 0.23),
    ("checking the result", frozenset({"verify", "judge", "quality"}), 0.2),
)
_TELL_FROM = 0.03  # of the whole; before it, the time left is a guess


def step_words(phase: str) -> str:
    """`Step 3 of 6: measuring damage`."""
    position = _position(phase)
    words = _tr("Step {n} of {total}: {what}")
    return words.format(n=position + 1, total=len(_STEPS), what=_tr(_STEPS[position][0]))


def share(progress: Progress) -> float:
    """How much of the whole is done, 0 to 1."""
    position = _position(progress.phase)
    within = min(progress.done / progress.total, 1.0) if progress.total else 0.0
    return sum(part for _, _, part in _STEPS[:position]) + _STEPS[position][2] * within


def left_s(job: Job) -> float | None:
    """Seconds still to go, from those it took so far; None while that says nothing."""
    done = share(job.progress)
    if done < _TELL_FROM:
        return None
    spent = job.updated_at - job.created_at
    return max(spent, 0.0) * (1 - done) / done


def _position(phase: str) -> int:
    return next((n for n, (_, phases, _) in enumerate(_STEPS) if phase in phases), 2)


def _tr(text: str) -> str:
    return QCoreApplication.translate("fit", text)
