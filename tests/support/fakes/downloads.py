"""Helpers that start downloads from the fake hub."""

from pathlib import Path

from engine.library.hub.download import Download, Request, RetryPolicy
from engine.library.hub.repository import choices_of

SPARK = Path("assets/models/spark-f16.gguf")
QUICK = RetryPolicy(streams=3, segment_bytes=2 * 1024 * 1024, give_up_s=5.0, first_backoff_s=0.05)
MB = 1024 * 1024


def download(client, catalogue, repo="org/Spark-GGUF", label=None, patience=QUICK):
    repository = client.repository(repo)
    choices = choices_of(repository)
    choice = next(c for c in choices if label in {None, c.label})
    return Download(client, catalogue, Request(repository, choice.files), patience)


def leftovers(catalogue):
    models = catalogue.paths.models
    return sorted(str(p.relative_to(models)) for p in models.rglob("*") if p.is_file())
