"""Request and response structs of /tessera/v1, shared by the server and its clients.

This package loads no native library, no web framework and no Qt, so a client can decode responses without starting
an engine.
Responses may get new fields. Clients ignore fields that they do not know.
"""
