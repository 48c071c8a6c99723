"""Opt-in: answers of sound loads over all shapes of models, cache types and ubatch sizes; none may be called wrong.

    python tests/optin/row_check_grid.py [NAME ...]

Each shape is loaded twice, so that over all shapes every pair of cache type, attention and ubatch is covered. A
runner answers four requests at once; its rows are computed again with the CPU's plain kernels.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.integration.test_row_check import recorded, verdicts
from tests.support.models.shapes import SHAPES, write_shape

# Every pair of the three; q8_0 and q4_0 need flash attention.
COMBINATIONS = (
    ("f16", "on", 64), ("f16", "off", 128), ("q8_0", "on", 128), ("q4_0", "on", 64), ("f16", "off", 256),
    ("q8_0", "on", 64), ("q4_0", "on", 256), ("f16", "on", 128), ("q8_0", "on", 256), ("q4_0", "on", 128),
    ("f16", "on", 256), ("f16", "off", 64),
)  # fmt: skip


def main() -> int:
    """Print each load; the exit code is the number of false alarms."""
    alarms = 0
    for number, name in enumerate(sys.argv[1:] or SHAPES):
        with tempfile.TemporaryDirectory() as folder:
            path = write_shape(Path(folder) / "model.gguf", SHAPES[name])
            for cache, attention, ubatch in (COMBINATIONS[(2 * number + i) % len(COMBINATIONS)] for i in (0, 1)):
                where = f"{name} {cache} {attention} {ubatch}"
                try:
                    settings, found = recorded(
                        path,
                        n_batch=2 * ubatch,
                        n_ubatch=ubatch,
                        type_k=cache,
                        type_v=cache,
                        flash_attn=attention,
                    )
                    seen = verdicts(settings, found)
                except Exception as error:
                    print(f"{where}: not compared: {error}", flush=True)
                    continue
                alarms += sum(one.wrong for one in seen)
                worst = max((one.nats for one in seen), default=0.0)
                rows = sum(len(one.rows) for one in found)
                print(f"{where}: {rows} rows, {worst:.2g} nats, wrong {sum(one.wrong for one in seen)}", flush=True)
    print(f"false alarms: {alarms}")
    return alarms


if __name__ == "__main__":
    sys.exit(main())
