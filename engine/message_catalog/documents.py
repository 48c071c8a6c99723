"""Sentences of document collections: problems of a collection, and the sources of a response."""

from typing import Final

_PROBLEMS: Final = {
    "not_there": "{path} is not there",
    "no_embedding_model": "there is no embedding model here, so passages are found by their words only",
    "cannot_embed": "{model} cannot embed: {why}",
    "cannot_embed_question": "{model} cannot embed the question, so only words were looked for: {why}",
    "nothing_embedded": "nothing is embedded yet, so only words were looked for",
    "remote_not_agreed": '{model} runs at {server}, another server. Nothing of the collection is sent there until you agree: --allow-remote in the terminal, "allow_remote": true in a request.',
    "looked_for_every_minute": "changes are looked for every minute only: {why}",
}
_GROUNDS: Final = {
    "whole_document": "The whole document was given: {tokens} tokens of {budget} that fit.",
    "whole_documents": "All {documents} documents were given: {tokens} tokens of {budget} that fit.",
    "nothing_to_give": "The collection holds no text yet that could be given.",
    "passages_weak": "Weak match: little of the question stands in the collection. The nearest {count} passages of {documents} documents ({amount}) were given all the same: {tokens} tokens.",
    "passages_given": "{count} passages of {documents} documents ({amount}) were given: {tokens} tokens.",
    "passages_not_whole": "The documents do not fit as a whole; {count} passages of {documents} documents ({amount}) were given: {tokens} tokens.",
    "characters": "{chars} characters",
    "million_characters": "{millions:.1f} million characters",
}
DOCUMENTS: Final = {
    **_PROBLEMS,
    **_GROUNDS,
    "no_collection": "There is no collection {name!r} here. Make one with: tessera collections add NAME PATH.",
    "no_collection_but": "There is no collection {name!r} here. Known: {known}.",
    "collection_unusable": "The index {path} cannot be used: {why}.",
    "collection_name": "The name of a collection has 1 to {most} characters.",
    "too_many_collections": "There are already {most} collections and vector stores. Remove some first.",
    "collection_there": "There is a collection named {name!r} already.",
}
