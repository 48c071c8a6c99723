"""Sentences of errors: what happened, the numbers, what to do next."""

from typing import Final

ERRORS: Final = {
    "no_model": "There is no model named {model!r} here.",
    "no_model_but": "There is no model named {model!r} here. Known models: {known}.",
    "bad_model_file": "{path} cannot be loaded: {why}",
    "check_failed": "the check after loading failed: {why}",
    "draft_unreadable": "the draft model cannot be read: {why}",
    "draft_bad": "the draft model: {why}",
    "headers_unreadable": "its headers could not be read",
    "probe_unreadable": "its answer could not be read: {why}",
    "provider_unknown": "no provider for {pin!r} is known on this computer",
    "engine_args_device": "{device} of engine_args.devices is not a usable device here.",
    "engine_args_refused": "llama.cpp does not load the model with these engine_args: {why}.",
    "context_overflow": "The prompt has {prompt_tokens} tokens, but this model runs with a context of {context_tokens}. Shorten the prompt or load the model with a larger context.",
    "context_cannot_grow": "The prompt has {prompt_tokens} tokens. The model's context has {loaded_tokens} and can grow to {context_tokens} in the memory that is free. Shorten the prompt, or take an 8-bit cache or a smaller model.",
    "context_cannot_grow_but": "The prompt has {prompt_tokens} tokens. The model's context has {loaded_tokens} and can grow to {context_tokens} in the memory that is free. Unload {models} to make room, or shorten the prompt.",
    "context_overflow_at_least": "The prompt has at least {prompt_tokens} tokens, but this model runs with a context of {context_tokens}. Shorten the prompt or load the model with a larger context.",
    "model_not_loaded": '{model} is not loaded, and a request with "priority": "side" loads no model.',
    "stays_here": "{model} runs at {server}, and work in the background sends nothing to another server.",
    "battery_spent": "At most {percent:g} % of the battery may be spent; {spent_percent:.1f} % are, and this request does not fit into the rest. Plug the computer in, or lift the bound: tessera power --free",
    "not_enough_memory": "{needed} are needed on {device}, {available} are available.",
    "not_enough_memory_but": "{needed} are needed on {device}, {available} are available. To make it fit: {options:; }.",
    "gib": "{gib:.1f} GiB",
    "mib": "{mib} MiB",
    "out_of_resources": "The system has no more {what} at the moment; try again later.",
}
