"""Child processes that run native kernels, and the protocol between them and the server."""
