"""Tools a model may call: servers of the Model Context Protocol, what is built in, and the consent they need."""
