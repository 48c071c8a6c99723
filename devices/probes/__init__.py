"""Pure readers: each queries a Host and returns facts; none raises for missing or invalid sources."""
