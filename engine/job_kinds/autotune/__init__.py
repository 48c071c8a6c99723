"""Finding the fastest settings for one model on this machine by measuring, never by guessing."""
