"""Sentences for errors of the server itself, its chat templates and its files."""

from typing import Final

SERVER: Final = {
    "too_many_wrong_keys": "Too many wrong keys from this address; try again in {seconds} s.",
    "key_not_valid": "This key is not valid here.",
    "key_without_manage": "This key may run models; this route needs a key with the scope manage.",
    "needs_management": "This route needs the local management token, or a key with the scope manage.",
    "needs_key": "This server needs an API key.",
    "server_stopping": "The server is stopping; try again when it is back.",
    "no_model_at_all": "There is no model here; get one with `tessera models pull`.",
    "no_fim_model": "No model here was trained to fill gaps in code; get one with `tessera models pull qwen2.5-coder-0.5b`.",
    "template_refuses": "The model's chat template refuses this conversation: {why}",
    "template_failed": 'The model\'s chat template failed: {why}. Send "chat_template": "chatml" to use the built-in template instead, or fix the template in the file.',
    "template_failed_at": 'The model\'s chat template failed (line {line}): {why}. Send "chat_template": "chatml" to use the built-in template instead, or fix the template in the file.',
    "templates_wait": "{count} requests with their own templates are already waiting.",
    "renderer_ended": "The process that renders chat templates ended ({code}).",
    "state_file_damaged": "{path} cannot be read: {why}.",
}
