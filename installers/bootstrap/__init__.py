"""Sets up a computer for Tessera. Standard library only, because nothing is installed yet."""
