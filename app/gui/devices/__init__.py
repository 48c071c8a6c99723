"""The devices page."""
