"""Setting up a machine for Tessera: standard library only, because nothing is installed yet."""
