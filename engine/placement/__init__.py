"""Chooses where and how a model runs on this machine, with reasons, and what to try when that fails."""
