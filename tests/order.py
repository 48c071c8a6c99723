"""The whole run in several processes: the longest files first, so that none is left alone at the end.

By itself pytest-xdist begins with the files that have most tests, and the longest ones have few.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Seconds of a file in a whole run, three at a time on two cores, 2026-11-24; the rest take a few.
# Those of quantizing became cheaper since and have the share that their processor seconds kept (docs/log.md).
# Source: `python3 start.py test --durations=150`.
SECONDS = {
    "tests/e2e/test_machine_routes.py": 11,
    "tests/e2e/test_quantize.py": 13,
    "tests/e2e/test_remotes.py": 37,
    "tests/e2e/test_terminal_quantize.py": 7,
    "tests/faults/test_compaction_killed.py": 15,
    "tests/faults/test_hostile_templates.py": 32,
    "tests/faults/test_loop_watch.py": 18,
    "tests/faults/test_quantize.py": 18,
    "tests/faults/test_quantize_killed.py": 110,
    "tests/gui/test_end_to_end.py": 31,
    "tests/gui/walk/test_answers.py": 24,
    "tests/gui/walk/test_blockers.py": 29,
    "tests/gui/walk/test_chat_keeping.py": 13,
    "tests/gui/walk/test_gate.py": 22,
    "tests/gui/walk/test_job_ends.py": 40,
    "tests/gui/walk/test_jobs.py": 14,
    "tests/gui/walk/test_leaving.py": 19,
    "tests/gui/walk/test_mends.py": 9,
    "tests/gui/walk/test_models.py": 11,
    "tests/gui/walk/test_one_name.py": 23,
    "tests/gui/walk/test_phases.py": 76,
    "tests/gui/walk/test_sizes.py": 44,
    "tests/gui/walk/test_stranger.py": 129,
    "tests/gui/walk/test_tools.py": 18,
    "tests/integration/app/test_documents.py": 7,
    "tests/integration/documents/test_formats.py": 21,
    "tests/integration/documents/test_hostile.py": 14,
    "tests/integration/quantize/test_kv_cache.py": 13,
    "tests/integration/quantize/test_measure.py": 25,
    "tests/integration/quantize/test_one_click.py": 26,
    "tests/integration/quantize/test_parcels.py": 20,
    "tests/integration/quantize/test_parts.py": 18,
    "tests/integration/quantize/test_plan_files.py": 65,
    "tests/integration/quantize/test_quality.py": 81,
    "tests/integration/quantize/test_smoothing.py": 45,
    "tests/integration/test_architectures.py": 52,
    "tests/integration/test_extending.py": 21,
    "tests/integration/test_going_back.py": 29,
    "tests/integration/test_memory_prediction.py": 5,
    "tests/integration/test_numbers.py": 30,
    "tests/integration/test_openapi.py": 20,
    "tests/integration/test_quantize_fit.py": 7,
    "tests/integration/test_quantize_gate.py": 20,
    "tests/integration/test_runner.py": 15,
    "tests/integration/test_side_by_side.py": 12,
    "tests/real/test_chat.py": 123,
    "tests/real/test_embeddings.py": 30,
    "tests/real/test_recorded.py": 57,
    "tests/real/test_speech.py": 15,
    "tests/real/test_suggestions.py": 34,
    "tests/unit/app/tools/test_builtin.py": 10,
    "tests/unit/engine/chat/test_bounded_child.py": 13,
    "tests/unit/engine/runner/test_watchdog.py": 32,
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
