"""HTTP access to document collections: their routes, chats that use them, OpenAI's files and vector stores."""
