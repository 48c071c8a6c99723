"""What was measured on this machine: records, keys and stores, below everything that measures or chooses."""
