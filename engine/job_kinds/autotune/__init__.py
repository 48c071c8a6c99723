"""Finds the fastest settings for one model on this machine by measuring."""
