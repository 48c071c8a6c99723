"""Other computers of the user that hold layers of a model: the way to them, and what was seen."""
