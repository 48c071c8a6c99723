"""`tessera worker`: lets another computer of the user run models on this computer's devices."""
