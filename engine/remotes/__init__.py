"""Other computers of the user that hold layers of a model: connections to them, and their last known state."""
