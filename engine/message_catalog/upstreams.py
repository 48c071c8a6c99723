"""Sentences of engine.upstreams and engine.remotes: problems of other servers, started programs and workers."""

from typing import Final

_WHY: Final = {
    "no_answer_within": "no answer within {seconds:.0f} s",
    "no_connection_within": "no connection within {seconds:.0f} s",
    "certificate_not_trusted": "its certificate is not trusted ({why})",
    "closed_in_the_middle": "the connection was closed in the middle",
    "no_final_response": "it sent {count} interim responses (1xx) and no final one",
    "closed_without_answer": "it closed the connection without an answer",
    "no_list": "it answers /v1/models with no list of models ({why})",
}
# Note on every response of another server, and the user's rules in it.
_RULES: Final = {
    "answered_by": "Answered by {upstream} ({url}) as {model}; your rule: {rule}.",
    "rule_always": "{model} to {there}",
    "rule_when": "{model} to {there} when {when: or }",
    "rule_there_as": "{upstream} as {model}",
    "rule_queue": "more than {count} wait here",
    "rule_unfit": "it does not fit here",
}
UPSTREAMS: Final = {
    **_WHY,
    **_RULES,
    "upstream_unreachable": "{upstream} cannot be reached at {url}: {why}. Check it: tessera upstreams check {upstream}",
    "upstream_refuses_key": "{upstream} rejects the key ({said}). Give it another: tessera upstreams key {upstream}",
    "upstream_busy": "{upstream} accepts no more requests now: {said}",
    "upstream_failed": "{upstream} failed ({status}): {said}",
    "upstream_refuses": "{upstream} rejects the request ({status}): {said}",
    "upstream_not_well": "{upstream} at {url} gave an invalid answer: {why}",
    "upstream_no_model": "{upstream} has no model named {model!r}; it has: {there}.",
    "upstream_no_json": "{upstream} answers {path}, but not with JSON.",
    "upstream_silent": "{upstream} did not answer: {why}.",
    "upstream_broke_off": "{upstream} aborted the answer: {why}.",
    "upstream_error_inside": "{upstream} aborted the answer: {said}",
    "upstream_cut": "{upstream} aborted the answer after {pieces} chunks.",
    "upstream_too_much": "{upstream} sent more than {mib} MiB.",
    "upstream_long_line": "{upstream} sent a line of more than {mib} MiB.",
    "upstream_unreadable": "{upstream} sent something unreadable: {shown}",
    "no_upstream_rule": "{model} runs on {upstream}, and nothing is sent there without your rule. To allow it: tessera upstreams route '{model}' {upstream}",
    "no_address": "{url!r} is not an address: {why}.",
    "no_such_address": "{url!r} is not an address such as http://10.0.0.2:8000.",
    "address_with_secret": "The address must not contain a password, query or fragment; enter keys separately.",
    "program_gone": "{program} cannot be started: {why}. Add it again: tessera engine add NAME PROGRAM",
    "program_silent": "{program} {option} did not end within {seconds:.0f} s.",
    "program_name": "{name!r} is not a valid program name. Use a lower-case letter first, then letters, digits, dots and dashes, at most 40 characters, and not the name of a kind.",
    "no_llama_server": "{program} is not a llama-server: its --help does not list {missing}.",
    "argument_is_ours": "Tessera sets {argument} itself. Remove it from the program's arguments.",
    "no_such_program": "There is no program named {name!r}; known: {there}. Add one: tessera engine add NAME PROGRAM",
    "engine_reads_gguf": "{engine} reads only GGUF files, and {model} is not one.",
    "engine_has_args": "{model} has engine_args, which apply only to Tessera's own llama.cpp. Remove them first, or pass arguments to {engine} when you add it.",
    "args_of_engine": "{model} runs in {engine}, which does not use engine_args. Pass its arguments when you add it.",
    "server_cannot": "A server of kind {kind} cannot do {what}; choose a model that runs in Tessera itself.",
    "external_not_installed": "{engine} is not installed: there is no `{program}` on the search path.",
    "external_ended": "{engine} ended with code {code}: {said}",
    "external_broke_off": "{engine} ended with code {code} in the middle of the answer: {said}",
    "external_silent": "{engine} gave no answer within {seconds:.0f} s; its last output: {said}",
    "external_advice": "{what}. {advice}",
}


# Problems of a worker or the connection to it, and what to do.
_OF_WORKERS: Final = {
    "other_kernel": "its llama.cpp is {theirs}, this computer's is {ours}",
    "shows_no_key": "{host} shows no host key",
    "showed_no_key": "{host} showed no host key",
    "other_known_key": "{host} shows another host key than known_hosts has",
    "changed_key": "{host} port {port} shows another host key than the one that was accepted, so nothing was sent to it",
    "key_refused": "{host} port {port} accepts none of your SSH keys for the user {user}",
    "key_file_unusable": "your key file {path} cannot be used ({why})",
    "ssh_silent": "{host} port {port} did not answer in time",
    "ssh_unreachable": "{host} port {port} cannot be reached by SSH ({why})",
    "no_worker_listens": "no worker answers at port {port} of {host} ({why})",
    "no_worker_answers": "no Tessera worker answers at port {port} of {host} ({why})",
    "not_our_worker": "the server at port {port} of {host} is not a Tessera worker",
    "worker_silent": "it has not responded for {seconds:.0f} s",
    "connection_ended": "the connection to it ended",
    "connection_ended_by": "the connection to it ended ({why})",
    "no_session": "the worker opened no session",
    "tunnel_ended": "its tunnel ended",
    "tunnel_unreadable": "the output of its tunnel could not be read ({why})",
    "became_slow": "the connection has become slow: a response takes {now_s:.2f} s; it took {usual_s:.3f} s when it was measured",
}
_NEXT: Final = {
    "try_on": "Check that it is on and that ssh reaches it: tessera remote check {remote}",
    "try_login": "Check that your public key is in its authorized_keys and that the agent is running: tessera remote check {remote}",
    "try_anew": "If that computer was reinstalled: tessera remote remove {remote}, then add it again.",
    "try_start": "Start it on the remote host: tessera worker",
    "try_same_version": "Install the same version of Tessera on both.",
    "try_look_again": "Requests are planned without it until it answers: tessera remote check {remote}",
}
REMOTES: Final = {
    **_OF_WORKERS,
    **_NEXT,
    "remote_failed": "{remote}: {why}.",
    "remote_failed_next": "{remote}: {why}. {next}",
    "not_that_key": "{host} shows the host key {fingerprint}, not {expected}; nothing was saved.",
    "unknown_host_key": "{host} shows the host key {fingerprint}, which this computer does not know. If it is the right one (on the remote host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), add it with --host-key {fingerprint}",
    "no_such_remote": "There is no remote named {name!r}; known: {known}.",
}
