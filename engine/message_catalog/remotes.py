"""Sentences of engine.remotes: problems of a worker or the connection to it, and what to do."""

from typing import Final

_WHY: Final = {
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
    **_WHY,
    **_NEXT,
    "remote_failed": "{remote}: {why}.",
    "remote_failed_next": "{remote}: {why}. {next}",
    "not_that_key": "{host} shows the host key {fingerprint}, not {expected}; nothing was saved.",
    "unknown_host_key": "{host} shows the host key {fingerprint}, which this computer does not know. If it is the right one (on the remote host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), add it with --host-key {fingerprint}",
    "no_such_remote": "There is no remote named {name!r}; known: {known}.",
}
