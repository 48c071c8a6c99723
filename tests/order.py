"""The whole run in several processes: the longest files first, so that none is left alone at the end.

By itself pytest-xdist begins with the files that have most tests, and the longest ones have few.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Seconds of a file in a whole run, three at a time on two cores, 2026-11-22 and, of the window, 11-23; the rest
# take a few.
# Source: `python3 start.py test -n 3 --dist loadfile --durations=200`.
SECONDS = {
    "tests/faults/test_compaction_killed.py": 32,
    "tests/faults/test_hostile_templates.py": 17,
    "tests/faults/test_quantize.py": 41,
    "tests/faults/test_quantize_killed.py": 271,
    "tests/e2e/test_machine_routes.py": 12,
    "tests/e2e/test_remotes.py": 55,
    "tests/e2e/test_terminal_quantize.py": 74,
    "tests/gui/test_end_to_end.py": 40,
    "tests/gui/walk/test_answers.py": 45,
    "tests/gui/walk/test_blockers.py": 36,
    "tests/gui/walk/test_gate.py": 30,
    "tests/gui/walk/test_job_ends.py": 40,
    "tests/gui/walk/test_jobs.py": 35,
    "tests/gui/walk/test_leaving.py": 20,
    "tests/gui/walk/test_mends.py": 25,
    "tests/gui/walk/test_models.py": 25,
    "tests/gui/walk/test_one_name.py": 32,
    "tests/gui/walk/test_phases.py": 110,
    "tests/gui/walk/test_sizes.py": 60,
    "tests/gui/walk/test_stranger.py": 125,
    "tests/gui/walk/test_tools.py": 25,
    "tests/integration/app/test_documents.py": 26,
    "tests/integration/documents/test_formats.py": 21,
    "tests/integration/documents/test_hostile.py": 14,
    "tests/integration/quantize/test_kv_cache.py": 16,
    "tests/integration/quantize/test_measure.py": 78,
    "tests/integration/quantize/test_one_click.py": 71,
    "tests/integration/quantize/test_parcels.py": 100,
    "tests/integration/quantize/test_parts.py": 73,
    "tests/integration/quantize/test_plan_files.py": 85,
    "tests/integration/quantize/test_quality.py": 101,
    "tests/integration/test_architectures.py": 71,
    "tests/integration/test_extending.py": 21,
    "tests/integration/test_going_back.py": 30,
    "tests/integration/test_memory_prediction.py": 25,
    "tests/integration/test_numbers.py": 30,
    "tests/integration/test_openapi.py": 20,
    "tests/integration/test_quantize_fit.py": 42,
    "tests/integration/test_side_by_side.py": 18,
    "tests/real/test_chat.py": 159,
    "tests/real/test_embeddings.py": 65,
    "tests/real/test_recorded.py": 85,
    "tests/real/test_speech.py": 11,
    "tests/real/test_suggestions.py": 68,
    "tests/unit/app/tools/test_builtin.py": 12,
    "tests/unit/quantize/convert/test_hostile_folder.py": 20,
    "tests/unit/test_quality.py": 47,
}
# Long files whose tests share nothing that is dear to make; each test may run in another process.
APART = frozenset({
    "tests/faults/test_quantize_killed.py",
    "tests/integration/quantize/test_one_click.py",
    "tests/integration/quantize/test_parcels.py",
    "tests/real/test_chat.py",
    "tests/real/test_recorded.py",
})  # fmt: skip


class LongestFirst(LoadFileScheduling):
    """Gives a free process the longest file that is left."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(
            self.workqueue, key=lambda part: (SECONDS.get(part.partition("::")[0], 0), len(self.workqueue[part]))
        )
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """Only for `--dist loadfile`."""
    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None
