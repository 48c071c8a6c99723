"""Shared by all runners: requests, their queue, draft lengths, sampling, constraints and text."""
