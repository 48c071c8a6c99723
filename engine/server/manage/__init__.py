"""Tessera's own routes below /tessera/v1: always behind the local token."""
