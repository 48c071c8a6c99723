"""What a load keeps ready for speculation: the file's own head, and copies of states that cannot be cut."""

from typing import Final

import msgspec

from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings

# Five rows a step with the newest token: kernels take rows by four, and each further token is accepted less often.
MAX_ROLLBACK: Final = 4
# Copies of states may take so much, or this part of the file where that is more. A prior, not measured.
COPIES_BYTES: Final = 256 << 20
COPIES_DIVISOR: Final = 8


def with_speculation(settings: LoadSettings, shape: ModelShape) -> LoadSettings:
    """`settings` with what speculation needs; the same where nothing is drafted."""
    if settings.max_draft <= 0 or settings.embeddings:
        return settings
    back = _affordable(settings, shape)
    head = shape.has_head and settings.draft_path is None and (back > 0 or not shape.recurrent)
    return msgspec.structs.replace(settings, mtp=head, max_rollback=back)


def _affordable(settings: LoadSettings, shape: ModelShape) -> int:
    """Rejected tokens that recurrent states can be taken back by, within what their copies may cost."""
    if not shape.recurrent or not shape.rolls_back:
        return 0
    one = settings.n_parallel * sum(layer.state_bytes for layer in shape.layers)
    budget = max(COPIES_BYTES, shape.file_bytes // COPIES_DIVISOR)
    return min(MAX_ROLLBACK, settings.max_draft, budget // one)
