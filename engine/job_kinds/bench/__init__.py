"""Measuring models on this machine: real ones, and stand-ins for models that were not downloaded."""
