"""What goes over the wire of /tessera/v1: a struct for every request and answer, the same for server and clients.

Nothing here loads a native library, a web framework or Qt: a client decodes an answer without starting an engine.
Fields may be added to an answer; clients pass over those that they do not know.
"""
