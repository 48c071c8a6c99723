"""The store's format, one step a version. A released step is never edited: a new one is added."""

# Order is by id, never by clock: clocks jump. Times are Unix seconds, for display only.
_CHATS = """
CREATE TABLE folders(
  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
CREATE TABLE conversations(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL DEFAULT '',
  folder_id INTEGER REFERENCES folders(id) ON DELETE SET NULL,
  pinned INTEGER NOT NULL DEFAULT 0,
  model TEXT NOT NULL DEFAULT '',
  system_prompt TEXT NOT NULL DEFAULT '',
  sampling TEXT NOT NULL DEFAULT '{}',
  draft TEXT NOT NULL DEFAULT '',
  leaf_id INTEGER,
  touched INTEGER NOT NULL DEFAULT 0,
  created_s REAL NOT NULL,
  trashed_s REAL);
CREATE INDEX conversations_by_touched ON conversations(trashed_s, pinned, touched);
CREATE TABLE messages(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation_id INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
  parent_id INTEGER REFERENCES messages(id) ON DELETE CASCADE,
  role TEXT NOT NULL CHECK(role IN ('user', 'assistant', 'tool')),
  content TEXT NOT NULL DEFAULT '',
  reasoning TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL DEFAULT 'complete',
  model TEXT NOT NULL DEFAULT '',
  facts TEXT NOT NULL DEFAULT '{}',
  created_s REAL NOT NULL);
CREATE INDEX messages_by_conversation ON messages(conversation_id, id);
CREATE INDEX messages_by_parent ON messages(parent_id);
"""

# A message enters the index when it is no longer being written, so that streaming costs nothing here.
_SEARCH = """
CREATE VIRTUAL TABLE messages_index USING fts5(
  content, content='messages', content_rowid='id', prefix='1 2 3 4 5', tokenize="unicode61 remove_diacritics 2");
CREATE TRIGGER messages_inserted AFTER INSERT ON messages WHEN new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_finished AFTER UPDATE ON messages
  WHEN old.status = 'streaming' AND new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_reopened AFTER UPDATE ON messages
  WHEN old.status <> 'streaming' AND new.status = 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
END;
CREATE TRIGGER messages_edited AFTER UPDATE OF content ON messages
  WHEN old.status <> 'streaming' AND new.status <> 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
  INSERT INTO messages_index(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER messages_deleted AFTER DELETE ON messages WHEN old.status <> 'streaming' BEGIN
  INSERT INTO messages_index(messages_index, rowid, content) VALUES ('delete', old.id, old.content);
END;
INSERT INTO messages_index(messages_index) VALUES ('rebuild');
"""

_ATTACHMENTS_AND_PRESETS = """
CREATE TABLE attachments(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  message_id INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
  name TEXT NOT NULL,
  mime TEXT NOT NULL,
  text TEXT NOT NULL DEFAULT '',
  data BLOB);
CREATE INDEX attachments_by_message ON attachments(message_id);
CREATE TABLE presets(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  system_prompt TEXT NOT NULL DEFAULT '',
  sampling TEXT NOT NULL DEFAULT '{}');
"""

_ARCHIVE = "ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0;"

# A folder with a path is a project. A fold stands for messages of a branch, or for older folds with them.
_TOOLS_PROJECTS_FOLDS = """
ALTER TABLE conversations ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
ALTER TABLE folders ADD COLUMN path TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN instructions TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN model TEXT NOT NULL DEFAULT '';
ALTER TABLE folders ADD COLUMN sampling TEXT NOT NULL DEFAULT '{}';
ALTER TABLE folders ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
CREATE TABLE folds(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation_id INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
  first_id INTEGER NOT NULL,
  last_id INTEGER NOT NULL,
  summary TEXT NOT NULL,
  model TEXT NOT NULL DEFAULT '',
  opened INTEGER NOT NULL DEFAULT 0,
  edited INTEGER NOT NULL DEFAULT 0,
  inside_id INTEGER REFERENCES folds(id) ON DELETE SET NULL,
  created_s REAL NOT NULL);
CREATE INDEX folds_by_conversation ON folds(conversation_id, first_id);
"""

_PROMPTS = """
CREATE TABLE prompts(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  text TEXT NOT NULL);
"""

MIGRATIONS: tuple[str, ...] = (
    _CHATS,
    _SEARCH,
    _ATTACHMENTS_AND_PRESETS,
    _ARCHIVE,
    _TOOLS_PROJECTS_FOLDS,
    _PROMPTS,
)
VERSION = len(MIGRATIONS)
