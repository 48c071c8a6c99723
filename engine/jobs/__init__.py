"""The registry of background jobs: their records, order, progress and cancellation."""
