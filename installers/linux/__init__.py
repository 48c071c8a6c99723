"""What a Linux desktop wants to know of the program, and the packages for it."""
