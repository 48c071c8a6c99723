"""Records of the database as immutable values."""

from dataclasses import dataclass, field
from typing import Literal

from app.answer_facts import NO_FACTS, AnswerFacts

Role = Literal["user", "assistant", "tool"]
Status = Literal["complete", "streaming", "stopped", "interrupted", "error"]


@dataclass(frozen=True)
class Attachment:
    """A file attached to a message: `text` goes into the context, `data` holds an image's bytes."""

    name: str
    mime: str
    text: str = ""
    data: bytes | None = None
    id: int = 0


@dataclass(frozen=True)
class Message:
    """One node of a conversation's tree."""

    id: int
    conversation_id: int
    parent_id: int | None
    role: Role
    content: str
    reasoning: str = ""
    status: Status = "complete"
    model: str = ""
    facts: AnswerFacts = NO_FACTS
    attachments: tuple[Attachment, ...] = ()
    created_s: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """One chat with its settings and the last message of the visible branch. `tools`: enabled tool sources."""

    id: int
    title: str = ""
    folder_id: int | None = None
    pinned: bool = False
    model: str = ""
    system_prompt: str = ""
    sampling: dict[str, object] = field(default_factory=dict)
    draft: str = ""
    leaf_id: int | None = None
    created_s: float = 0.0
    archived: bool = False
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Folder:
    """A named group of conversations. With a `path` or instructions it is a project, and new chats use these."""

    id: int
    name: str
    path: str = ""
    instructions: str = ""
    model: str = ""
    sampling: dict[str, object] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A summary that replaces the messages `first_id` to `last_id` of a branch.

    `opened`: the original messages are sent instead. `inside_id`: the later summary that includes this one.
    """

    id: int
    conversation_id: int
    first_id: int
    last_id: int
    summary: str
    model: str = ""
    opened: bool = False
    edited: bool = False
    inside_id: int | None = None
    created_s: float = 0.0


@dataclass(frozen=True)
class Preset:
    """A named system prompt with sampling settings."""

    id: int
    name: str
    system_prompt: str
    sampling: dict[str, object]


@dataclass(frozen=True)
class Prompt:
    """A saved prompt; {{name}} is a placeholder that is filled in when the prompt is used."""

    id: int
    name: str
    text: str


@dataclass(frozen=True)
class Memory:
    """A fact that chats remember, everywhere or in the project `folder_id` only."""

    id: int
    text: str
    folder_id: int | None = None
    created_s: float = 0.0


@dataclass(frozen=True)
class Hit:
    """A message found by search; `excerpt` marks the matching words with U+0002 and U+0003."""

    message_id: int
    conversation_id: int
    title: str
    excerpt: str
