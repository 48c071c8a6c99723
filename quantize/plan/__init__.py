"""Chooses the type of every tensor. Pure: no file access, no native code."""
