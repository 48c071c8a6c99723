"""`tessera worker`: this computer's devices for models of another computer of the user."""
