"""The HTTP server: one application, one package per protocol."""
