"""Ask about a project: context in, answer out, edits read from it and placed in the files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.client import Answer, Client
from app.code.context.assemble import assemble
from app.code.context.pieces import Context, Piece
from app.code.edits.parse import parse_answer
from app.code.edits.session import Proposal
from app.code.project import Project
from app.code.prompts import SYSTEM, commit_request
from app.code.tokens import TokenEstimate

# Part of the context that is kept free for the answer.
_ANSWER_SHARE = 4
_LEAST_BUDGET = 128
# A diff longer than this for a commit message is cut; the message says so.
_COMMIT_SHARE = 2


@dataclass
class Assistant:
    """A conversation about one project. `context_tokens` is what the model really has."""

    project: Project
    client: Client
    model: str
    context_tokens: int
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    count: TokenEstimate = field(default_factory=TokenEstimate)

    def budget(self) -> int:
        """Tokens that context may take beside the conversation so far and the answer."""
        used = sum(self.count(str(message["content"])) for message in self.messages)
        return max(self.context_tokens * (_ANSWER_SHARE - 1) // _ANSWER_SHARE - used, _LEAST_BUDGET)

    def context_for(
        self, question: str, given: Sequence[Piece] = (), excluded: frozenset[str] = frozenset()
    ) -> Context:
        """What would go with the question; the index is brought up to date first."""
        self.project.index.refresh()
        return assemble(
            self.project.index,
            question,
            max(self.budget() - self.count(question), _LEAST_BUDGET),
            self.count,
            given=given,
            git=self.project.git,
            excluded=excluded,
        )

    def ask(self, question: str, context: Context) -> Iterator[Answer]:
        """Stream the answer; the conversation keeps it when it is complete.

        Raises: ApiError, ServerUnreachable.
        """
        content = f"{context.rendered()}\n{question}" if context.pieces else question
        asked = [*self.messages, {"role": "user", "content": content}]
        text: list[str] = []
        for answer in self.client.chat(self.model, asked, **self.options):
            text.append(answer.text)
            if answer.usage:
                whole = "".join(str(message["content"]) for message in asked)
                self.count.learn(whole, int(answer.usage.get("prompt_tokens", 0)))
            yield answer
        self.messages = [*asked, {"role": "assistant", "content": "".join(text)}]

    @property
    def last_answer(self) -> str:
        """The text of the last complete answer; empty before the first."""
        last = self.messages[-1]
        return str(last["content"]) if last["role"] == "assistant" else ""

    def proposal(self, picked: dict[int, int] | None = None) -> Proposal:
        """The edits of the last answer, placed in the files as they are now."""
        known = frozenset(self.project.index.database.paths())
        return self.project.edits.propose(parse_answer(self.last_answer, known), picked)

    def commit_message(self, *, staged: bool = False) -> Iterator[Answer]:
        """Stream a commit message for the uncommitted (or staged) changes; nothing is committed."""
        if self.project.git is None:
            return
        diff = self.project.git.diff(staged=staged).text
        if not diff:
            return
        limit = int(self.context_tokens / _COMMIT_SHARE * self.count.bytes_per_token)
        if len(diff) > limit:
            diff = diff[:limit].rpartition("\n")[0] + "\n[the rest of the change does not fit the context]"
        request = commit_request(diff, self.project.git.recent_subjects())
        yield from self.client.chat(self.model, [{"role": "user", "content": request}], **self.options)
