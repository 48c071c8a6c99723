"""The whole run in several processes: the longest files first, so that none is left alone at the end.

By itself pytest-xdist begins with the files that have most tests, and the longest ones have few.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Seconds of a file in a whole run, three at a time on two cores, 2026-11-24; the rest take a few.
# Source: `python3 start.py test --durations=150`.
SECONDS = {
    "tests/e2e/test_lifecycle.py": 14,
    "tests/e2e/test_machine_routes.py": 16,
    "tests/e2e/test_quantize.py": 12,
    "tests/e2e/test_remotes.py": 72,
    "tests/e2e/test_terminal.py": 18,
    "tests/e2e/test_vllm_engine.py": 12,
    "tests/faults/test_compaction_killed.py": 18,
    "tests/faults/test_connections.py": 18,
    "tests/faults/test_hostile_templates.py": 25,
    "tests/faults/test_onnx_providers.py": 11,
    "tests/faults/test_quantize.py": 30,
    "tests/faults/test_quantize_killed.py": 163,
    "tests/gui/test_code.py": 14,
    "tests/gui/test_end_to_end.py": 25,
    "tests/gui/walk/test_answers.py": 17,
    "tests/gui/walk/test_blockers.py": 33,
    "tests/gui/walk/test_chat_keeping.py": 22,
    "tests/gui/walk/test_chats.py": 10,
    "tests/gui/walk/test_connect.py": 10,
    "tests/gui/walk/test_controls.py": 13,
    "tests/gui/walk/test_devices.py": 11,
    "tests/gui/walk/test_gate.py": 20,
    "tests/gui/walk/test_job_ends.py": 16,
    "tests/gui/walk/test_jobs.py": 19,
    "tests/gui/walk/test_leaving.py": 17,
    "tests/gui/walk/test_long_chats.py": 13,
    "tests/gui/walk/test_mends.py": 22,
    "tests/gui/walk/test_models.py": 21,
    "tests/gui/walk/test_one_name.py": 24,
    "tests/gui/walk/test_other_servers.py": 15,
    "tests/gui/walk/test_palette.py": 10,
    "tests/gui/walk/test_phases.py": 45,
    "tests/gui/walk/test_settings.py": 15,
    "tests/gui/walk/test_sizes.py": 69,
    "tests/gui/walk/test_small_controls.py": 23,
    "tests/gui/walk/test_stranger.py": 99,
    "tests/gui/walk/test_tools.py": 26,
    "tests/integration/app/code/test_agent.py": 17,
    "tests/integration/app/code/test_mcp_hostile.py": 21,
    "tests/integration/app/test_child.py": 12,
    "tests/integration/app/test_gate_command.py": 12,
    "tests/integration/app/tools/test_hostile_servers.py": 17,
    "tests/integration/documents/test_formats.py": 26,
    "tests/integration/engine/server/test_manage_library.py": 14,
    "tests/integration/quantize/test_kv_cache.py": 13,
    "tests/integration/quantize/test_measure.py": 31,
    "tests/integration/quantize/test_one_click.py": 23,
    "tests/integration/quantize/test_parts.py": 10,
    "tests/integration/quantize/test_plan_files.py": 85,
    "tests/integration/quantize/test_quality.py": 70,
    "tests/integration/quantize/test_smoothing.py": 55,
    "tests/integration/test_architectures.py": 50,
    "tests/integration/test_engine_versions.py": 13,
    "tests/integration/test_going_back.py": 30,
    "tests/integration/test_llama_cpp_converter.py": 12,
    "tests/integration/test_measuring.py": 27,
    "tests/integration/test_memory_prediction.py": 22,
    "tests/integration/test_mtp.py": 27,
    "tests/integration/test_onnx_runner.py": 12,
    "tests/integration/test_pool_and_aliases.py": 11,
    "tests/integration/test_quantize_fit.py": 15,
    "tests/integration/test_quantize_gate.py": 22,
    "tests/integration/test_request_contract.py": 16,
    "tests/integration/test_runner.py": 22,
    "tests/integration/test_security.py": 11,
    "tests/integration/test_sharing.py": 49,
    "tests/integration/test_side_by_side.py": 17,
    "tests/integration/test_upstreams.py": 11,
    "tests/integration/test_vision.py": 13,
    "tests/real/test_chat.py": 137,
    "tests/real/test_embeddings.py": 25,
    "tests/real/test_recorded.py": 59,
    "tests/real/test_speech.py": 23,
    "tests/real/test_suggestions.py": 32,
    "tests/unit/app/tools/test_builtin.py": 11,
    "tests/unit/engine/bench/test_power.py": 11,
    "tests/unit/engine/chat/test_bounded_child.py": 20,
    "tests/unit/engine/chat/test_golden_templates.py": 12,
    "tests/unit/engine/library/test_download.py": 12,
    "tests/unit/engine/runner/test_watchdog.py": 50,
    "tests/unit/quantize/onnx/test_weights.py": 12,
    "tests/unit/quantize/test_native_blocks.py": 11,
    "tests/unit/test_quality.py": 40,
}
# Long files whose tests share nothing that is dear to make; each test may run in another process.
APART = frozenset({
    "tests/faults/test_quantize_killed.py",
    "tests/integration/quantize/test_one_click.py",
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
