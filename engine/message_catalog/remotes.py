"""Sentences of engine.remotes: problems of a worker or the connection to it, and what to do."""

from typing import Final

_WHY: Final = {
    "other_kernel": "its llama.cpp is {theirs}, this computer's is {ours}",
    "shows_no_key": "{host} shows no host key",
    "showed_no_key": "{host} showed no host key",
    "other_known_key": "{host} shows another host key than known_hosts has",
    "changed_key": "{host} port {port} shows another host key than the one that was accepted, so nothing was sent to it",
    "key_refused": "{host} port {port} takes none of your SSH keys for the user {user}",
    "key_file_unusable": "your key file {path} cannot be used ({why})",
    "ssh_silent": "{host} port {port} did not answer in time",
    "ssh_unreachable": "{host} port {port} cannot be reached by SSH ({why})",
    "no_worker_listens": "no worker answers at port {port} of {host} ({why})",
    "no_worker_answers": "at port {port} of {host} no Tessera worker answers ({why})",
    "not_our_worker": "what answers at port {port} of {host} is no Tessera worker",
    "worker_silent": "nothing was heard from it for {seconds:.0f} s",
    "connection_ended": "the connection to it ended",
    "connection_ended_by": "the connection to it ended ({why})",
    "no_session": "the worker opened no session",
    "tunnel_ended": "its tunnel ended",
    "tunnel_unreadable": "its tunnel said what cannot be read ({why})",
    "became_slow": "the way there has become slow: an answer takes {now_s:.2f} s, {usual_s:.3f} s when it was measured",
}
_NEXT: Final = {
    "try_on": "Is it on, and does ssh reach it? tessera remote check {remote}",
    "try_login": "Is your public key in its authorized_keys, and the agent running? tessera remote check {remote}",
    "try_anew": "If that computer was set up anew: tessera remote remove {remote}, then add it again.",
    "try_start": "Start it over there: tessera worker",
    "try_same_version": "Install the same version of Tessera on both.",
    "try_look_again": "The next request is planned without it until it answers: tessera remote check {remote}",
}
REMOTES: Final = {
    **_WHY,
    **_NEXT,
    "remote_failed": "{remote}: {why}.",
    "remote_failed_next": "{remote}: {why}. {next}",
    "not_that_key": "{host} shows the host key {fingerprint}, not {expected}; nothing was kept.",
    "unknown_host_key": "{host} shows the host key {fingerprint}, which this computer does not know. If it is the right one (over there: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), add it with --host-key {fingerprint}",
    "no_such_remote": "There is no remote named {name!r}; there are: {known}.",
}
