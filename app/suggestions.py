"""Questions to begin with, each with what a right answer says: a test asks them with the shipped defaults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Suggestion:
    """A question, and a pattern (case ignored) that every right answer matches."""

    question: str
    fact: str


FOR_A_MODEL = (
    Suggestion("What is photosynthesis?", r"(?s)(?=.*plant)(?=.*(light|sun|carbon dioxide|co₂|co2))"),
    Suggestion("What does the heart do?", r"blood"),
    Suggestion("Why do we need sleep?", r"health|energy|rest|surviv"),
)
FOR_THE_TOY = (Suggestion("What is quantization?", r"bits"),)
