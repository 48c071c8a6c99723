"""Sentences of engine.library: why a model is proposed, and problems of a model, a hub or the disk."""

from typing import Final

_STARTERS: Final = {
    "starter_fits": "{use}: about {share:.0%} of the memory at 4 bits",
    "starter_fits_sparse": "{use}: about {share:.0%} of the memory at 4 bits; reads only {active_b:.1f} B parameters per token, so it is fast",
    "starter_chat": "The largest chat model of the list that fits",
    "starter_coding": "The largest coding model of the list that fits",
    "starter_fim": "Completes code while you type",
    "starter_edit": "Suggests your next edit of code",
    "starter_embedding": "Finds documents by meaning",
    "starter_vision": "Reads images",
    "starter_tiny": "Small and quick, for everyday questions on any machine",
}
_HUB: Final = {
    "hub_unreachable": "{host} cannot be reached ({why}). Check the network connection.",
    "address_unknown": "its address is not known here",
    "no_network": "there is no network",
    "nobody_answers": "no server answers there",
    "no_answer": "it does not answer",
    "offline": "offline mode is on (network.offline or HF_HUB_OFFLINE); turn it off to search or download",
    "rate_limited": "{endpoint} asks to wait {retry_after_s:.0f} s before the next request",
    "no_repository": "The hub has no repository {repo!r}, or it is private.",
    "no_revision": "The hub has no revision of {repo!r}, or it is private.",
    "no_such_file": "The hub has no such file in {repo!r}, or it is private.",
    "gated": "{repo} is gated: accept its terms at {url}",
    "gated_no_token": "{repo} is gated: accept its terms and set a token (HF_TOKEN or the settings) at {url}",
    "nothing_called": "{repo} has nothing called {wanted!r}. It has no GGUF or safetensors files.",
    "nothing_called_but": "{repo} has nothing called {wanted!r}. It offers: {choices}.",
    "unsafe_name": "the file name {name!r} is not safe on disk",
    "names_no_repository": "{text!r} names no repository; write owner/name or owner/name:Q4_K_M",
    "no_repository_name": "{text!r} is no repository name (owner/name)",
    "no_ranges": "{file}: the server does not support range requests, so the file cannot be inspected",
    "not_from_a_hub": "{model} was not downloaded from a hub: there is nothing to update it from.",
    "no_files_any_more": "{repo} no longer has files with these names; {model} is kept.",
    "bad_update": "the newer version of {repo} cannot be used ({why}); the previous one was kept",
    "file_changed": "{file} changed on the hub during the download; start the download again",
}
_FILES: Final = {
    "parts_missing": "{count} parts are missing, the first is {first}",
    "ends_early": "incomplete: it ends after {have_bytes:,} bytes, a complete file has {needed_bytes:,}",
    "ends_in_header": "incomplete: it ends after {have_bytes:,} bytes, within its header",
    "bad_file": "{path}: {why}",
    "bad_file_at": "{path}: {why} (at byte {offset})",
    "unreadable": "{path} cannot be read: {why}",
    "source_changed": "{path} changed while it was read",
    "disk_full_at": "{needed_bytes:bytes} needed at {path}, {free_bytes:plain_bytes} free",
    "budget_too_small": "{limit_bytes:bytes} requested; the smallest possible quantization needs {smallest_bytes:plain_bytes}",
    "fetched_elsewhere": "another process is downloading this file",
}
_DISK: Final = {
    "disk_full": "{needed_bytes:bytes} needed in {path}, {free_bytes:plain_bytes} free",
    "cannot_write": "{path} cannot be written: {why}",
    "hash_mismatch": "{file}: expected sha256 {expected}, found {actual}",
    "no_model_there": "it is no GGUF file and no folder of a safetensors or ONNX model",
    "leads_out": "{name} leads out of the model's folder",
    "no_app_folder": "no folder of {app} was found on this computer; give its path instead",
    "nothing_at_path": "{path} does not exist; give a file, a folder, or one of: {apps}",
    "not_in_trash": "{ticket!r} is not in the trash",
    "no_config": "{folder} is not a model folder: it contains no config.json.",
    "there_already": "{path} already exists; name another file.",
}
_CONVERTER: Final = {
    "converter_stays": "{path} cannot be removed: {why}",
    "converter_disk": "it needs {needed_mib} MiB in {path}; {free_mib} MiB are free",
    "converter_python": "its packages are for Python {versions}, and none of these is installed",
    "converter_step": "{failed}: {why}",
    "converter_starts_not": "it does not start",
    "converter_failed": "llama.cpp's converter failed: {why}",
    "environment_not_made": "the environment could not be created",
    "not_fetched": "{what} could not be downloaded",
    "packages": "packages",
    "source_archive": "llama.cpp's source archive",
    "exit_code": "exit code {code}",
    "archive_not_unpacked": "{name} cannot be unpacked: {why}",
    "archive_without_converter": "{name} holds no converter",
}
LIBRARY: Final = {**_STARTERS, **_HUB, **_FILES, **_DISK, **_CONVERTER}
