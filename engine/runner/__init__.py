"""Child processes that own native kernels, and the protocol spoken with them."""
