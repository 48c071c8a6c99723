"""Tessera's own routes below /tessera/v1; they always require management access."""
