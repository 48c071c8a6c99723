"""What this computer can run: hardware inventory, usable backends and the memory ledger."""
