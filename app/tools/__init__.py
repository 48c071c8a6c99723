"""Tools for models: MCP servers, built-in tools, and the user's consent."""
