"""Recipes that bring Tessera onto a machine."""
