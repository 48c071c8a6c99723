"""Measures energy per request and enforces power limits and battery budgets."""
