"""What the user set for models and clients, each kept in a file that the terminal and the server share."""
