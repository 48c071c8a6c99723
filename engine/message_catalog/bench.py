"""Sentences of engine.job_kinds.bench and autotune: what is being measured, and why it cannot be."""

from typing import Final

BENCH: Final = {
    "nothing_works": "No settings were found that load this model: {why}",
    "standin_failed": "The simulated model could not be written: {why}",
    "bench_rest": "the idle computer",
    "bench_header": "reading the header",
    "bench_stand_in": "writing a simulated model {share:.0%}",
    "bench_loading": "loading {phase} {share:.0%}",
    "bench_warming_up": "warming up",
    "bench_length": "{tokens} tokens, {run} of {runs}",
    "compare_place": "measuring on {device} by {backend}",
    "bench_parallel": "{requests} concurrent, {run} of {runs}",
}
