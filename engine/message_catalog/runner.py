"""Sentences of engine.runner: why a model's process ended."""

from typing import Final

RUNNER: Final = {
    "process_ended": "the model's process ended: {cause} (exit code {code})",
    "file_ends_runner": "llama.cpp crashes when it reads the file: {cause} (exit code {code}). The file is damaged or not made for this version.",
    "part_ends_runner": "llama.cpp crashes when it reads {part}: {cause} (exit code {code}). The file is damaged or not made for this model.",
    "model_unloaded": "the model was unloaded",
    "own_check": "an internal check of llama.cpp failed",
    "segmentation_fault": "a native crash (segmentation fault)",
    "access_violation": "a native crash (access violation)",
    "unknown_instruction": "an instruction this processor does not have",
    "killed": "the process was killed, by a user or for lack of memory",
    "file_shrank": "the model file shrank or its disk failed while it was being read",
    "not_loadable": "the model could not be loaded",
    "last_words_unknown": "its last output is unknown",
    "runner_stuck": "the runner was stuck and has been stopped: {why}",
    "did_not_start": "it did not start within {seconds:.0f} s",
    "step_took": "one step has taken {seconds:.0f} s",
    "no_sign_of_life": "no heartbeat for {seconds:.0f} s",
    "keeps_crashing": "{model} crashed {times} times in {seconds:.0f} s and is not restarted for now; the last crash: {last}",
}
