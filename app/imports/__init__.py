"""Import chats from the exports of other programs."""
