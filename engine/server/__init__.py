"""HTTP: one application, one package per protocol."""
