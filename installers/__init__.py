"""Installs Tessera and builds its packages."""
