"""Collections over HTTP: their own routes, chats that ask them, and OpenAI's files and vector stores."""
