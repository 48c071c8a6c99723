"""Starts the longest files first in a parallel run, so that none is left alone at the end.

By default pytest-xdist starts with the files that have most tests, but the longest files have few.

    python3 start.py test --durations=150 > LOG; python -m tests.support.plugins.order LOG

writes SECONDS anew. Use a run of all tests on a quiet machine.
"""

import contextlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Seconds per file, with the files of WITH that follow it, in a complete run on two cores, or estimated from its CPU
# time; the others take less than LEAST_S.
LEAST_S = 8
SECONDS = {
    "tests/e2e/test_added_engines.py": 40,
    "tests/e2e/test_collections.py": 10,
    "tests/e2e/test_connect.py": 12,
    "tests/e2e/test_context_refusals.py": 14,
    "tests/e2e/test_draft_model.py": 16,
    "tests/e2e/test_lifecycle.py": 16,
    "tests/e2e/test_loop_guard.py": 11,
    "tests/e2e/test_machine_routes.py": 28,
    "tests/e2e/test_onnx_chat.py": 14,
    "tests/e2e/test_quantize.py": 16,
    "tests/e2e/test_receipts.py": 17,
    "tests/e2e/test_remotes.py": 66,
    "tests/e2e/test_settings_take_effect.py": 18,
    "tests/e2e/test_terminal.py": 16,
    "tests/e2e/test_terminal_quantize.py": 15,
    "tests/e2e/test_vllm_engine.py": 22,
    "tests/e2e/test_workers.py": 9,
    "tests/faults/test_compaction_killed.py": 14,
    "tests/faults/test_connections.py": 19,
    "tests/faults/test_fastflowlm.py": 10,
    "tests/faults/test_hostile_templates.py": 23,
    "tests/faults/test_not_finite.py": 14,
    "tests/faults/test_onnx_providers.py": 10,
    "tests/faults/test_quantize.py": 29,
    "tests/faults/test_quantize_killed.py": 40,
    "tests/faults/test_store.py": 19,
    "tests/gui/test_chat.py": 19,
    "tests/gui/test_fit_page.py": 12,
    "tests/gui/test_markdown_layout.py": 15,
    "tests/gui/test_seen_by_everyone.py": 10,
    "tests/gui/walk/test_answers.py": 10,
    "tests/gui/walk/test_blockers.py": 37,
    "tests/gui/walk/test_chat_keeping.py": 30,
    "tests/gui/walk/test_connect.py": 22,
    "tests/gui/walk/test_controls.py": 13,
    "tests/gui/walk/test_devices.py": 12,
    "tests/gui/walk/test_gate.py": 25,
    "tests/gui/walk/test_job_ends.py": 16,
    "tests/gui/walk/test_jobs.py": 27,
    "tests/gui/walk/test_leaving.py": 16,
    "tests/gui/walk/test_long_chats.py": 12,
    "tests/gui/walk/test_mends.py": 20,
    "tests/gui/walk/test_models.py": 33,
    "tests/gui/walk/test_one_name.py": 17,
    "tests/gui/walk/test_phases.py": 44,
    "tests/gui/walk/test_prompts.py": 28,
    "tests/gui/walk/test_room.py": 16,
    "tests/gui/walk/test_settings.py": 15,
    "tests/gui/walk/test_sizes.py": 40,
    "tests/gui/walk/test_small_controls.py": 25,
    "tests/gui/walk/test_stranger.py": 27,
    "tests/gui/walk/test_tools.py": 24,
    "tests/integration/app/code/test_agent.py": 16,
    "tests/integration/app/code/test_mcp_hostile.py": 22,
    "tests/integration/app/test_child.py": 10,
    "tests/integration/app/test_gate_command.py": 12,
    "tests/integration/app/test_models_command.py": 15,
    "tests/integration/app/tools/test_hostile_servers.py": 17,
    "tests/integration/documents/test_collections.py": 14,
    "tests/integration/documents/test_formats.py": 15,
    "tests/integration/engine/server/test_manage_library.py": 14,
    "tests/integration/quantize/test_kv_cache.py": 14,
    "tests/integration/quantize/test_measure.py": 18,
    "tests/integration/quantize/test_one_click.py": 15,
    "tests/integration/quantize/test_parcels.py": 9,
    "tests/integration/quantize/test_parts.py": 13,
    "tests/integration/quantize/test_plan_files.py": 22,
    "tests/integration/quantize/test_quality.py": 20,
    "tests/integration/quantize/test_reused_workers.py": 9,
    "tests/integration/quantize/test_smoothing.py": 24,
    "tests/integration/quantize/test_stock.py": 8,
    "tests/integration/test_architectures.py": 37,
    "tests/integration/test_chat_tools.py": 16,
    "tests/integration/test_code_command.py": 18,
    "tests/integration/test_context_growth.py": 18,
    "tests/integration/test_deterministic.py": 10,
    "tests/integration/test_draft_model.py": 22,
    "tests/integration/test_engine_versions.py": 13,
    "tests/integration/test_going_back.py": 13,
    "tests/integration/test_llama_cpp_converter.py": 14,
    "tests/integration/test_measuring.py": 24,
    "tests/integration/test_memory_prediction.py": 14,
    "tests/integration/test_mtp.py": 14,
    "tests/integration/test_numbers.py": 10,
    "tests/integration/test_onnx_fixed.py": 14,
    "tests/integration/test_onnx_runner.py": 15,
    "tests/integration/test_pool_and_aliases.py": 11,
    "tests/integration/test_quantize_fit.py": 24,
    "tests/integration/test_quantize_gate.py": 18,
    "tests/integration/test_repeating.py": 18,
    "tests/integration/test_request_contract.py": 13,
    "tests/integration/test_rollback.py": 8,
    "tests/integration/test_runner.py": 23,
    "tests/integration/test_second_run.py": 11,
    "tests/integration/test_security.py": 11,
    "tests/integration/test_sharing.py": 30,
    "tests/integration/test_side_by_side.py": 9,
    "tests/integration/test_streamed_experts.py": 9,
    "tests/integration/test_tiles.py": 24,
    "tests/integration/test_vision.py": 8,
    "tests/real/test_chat.py": 45,
    "tests/real/test_embeddings.py": 22,
    "tests/real/test_evals.py": 14,
    "tests/real/test_recorded.py": 20,
    "tests/real/test_speech.py": 28,
    "tests/real/test_suggestions.py": 12,
    "tests/real/test_tiles.py": 8,
    "tests/unit/engine/chat/test_bounded_child.py": 27,
    "tests/unit/engine/chat/test_golden_templates.py": 9,
    "tests/unit/engine/job_kinds/bench/test_bench.py": 13,
    "tests/unit/engine/job_kinds/bench/test_power.py": 12,
    "tests/unit/engine/library/test_download.py": 11,
    "tests/unit/engine/placement/test_decisions.py": 8,
    "tests/unit/engine/placement/test_need.py": 12,
    "tests/unit/engine/runner/test_watchdog.py": 49,
    "tests/unit/installers/test_bootstrap.py": 14,
    "tests/unit/quantize/convert/test_hostile_folder.py": 18,
    "tests/unit/quantize/onnx/test_weights.py": 13,
    "tests/unit/quantize/test_native_blocks.py": 12,
    "tests/unit/quantize/test_write_identity.py": 12,
    "tests/unit/test_quality.py": 27,
}
# Files that run after others in the same process and reuse their resources: a server with the real model; ggml's
# tables for 2-bit types, which take 6.5 s of CPU time.
WITH = {
    "tests/real/test_evals.py": "tests/real/test_chat.py",
    "tests/real/test_repeating.py": "tests/real/test_chat.py",
    "tests/real/test_tiles.py": "tests/real/test_chat.py",
    "tests/unit/quantize/test_lattices.py": "tests/unit/quantize/test_native_blocks.py",
}


class LongestFirst(LoadFileScheduling):
    """Gives a free process the longest remaining file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return WITH.get(file, file)

    def _reschedule(self, node: WorkerController) -> None:
        # A process that crashed gives back all of its files. One that gets a file whose tests have ended
        # reports nothing, and waits forever.
        for part in [part for part, tests in self.workqueue.items() if all(tests.values())]:
            del self.workqueue[part]
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        longest = max(
            self.workqueue, key=lambda part: (SECONDS.get(part.partition("::")[0], 0), len(self.workqueue[part]))
        )
        self.workqueue.move_to_end(longest, last=False)
        with contextlib.suppress(OSError):  # the process has just died: it gives the file back
            super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """Use the scheduler with `--dist loadfile` only."""
    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None


def seconds_of(log: str) -> dict[str, int]:
    """SECONDS from the output of a run with `--durations` (tests/support/plugins/costs.py)."""
    seconds: Counter[str] = Counter()
    for taken_s, file in re.findall(r"\) +([\d.]+)s (tests/\S+\.py)$", log, re.MULTILINE):
        seconds[WITH.get(file, file)] += float(taken_s)
    return {file: round(taken_s) for file, taken_s in sorted(seconds.items()) if taken_s >= LEAST_S}


def with_seconds(source: str, seconds: dict[str, int]) -> str:
    """This file's source with another table."""
    rows = "".join(f'    "{file}": {taken_s},\n' for file, taken_s in seconds.items())
    return re.sub(
        r"^SECONDS = \{\n.*?^\}",
        lambda _: f"SECONDS = {{\n{rows}}}",
        source,
        count=1,
        flags=re.DOTALL | re.MULTILINE,
    )


def write_table(log: Path) -> None:
    seconds, file = seconds_of(log.read_text("utf-8", errors="replace")), Path(__file__)
    if not seconds:
        raise SystemExit(f"{log} names no file and its seconds: was it a run with --durations=150?")
    file.write_text(with_seconds(file.read_text("utf-8"), seconds), "utf-8")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
