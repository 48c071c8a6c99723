"""Sentences of document collections: problems of a collection, and the sources of a response."""

from typing import Final

_PROBLEMS: Final = {
    "not_there": "{path} does not exist",
    "not_checked": "{what} could not be checked completely, and is checked again every minute: {why}",
    "no_embedding_model": "only keywords are searched, because there is no embedding model here",
    "cannot_embed": "{model} cannot embed: {why}",
    "cannot_embed_question": "{model} cannot embed the question, so only keyword search was used: {why}",
    "nothing_embedded": "there are no embeddings yet, so only keyword search was used",
    "remote_not_agreed": '{model} runs at {server}, another server. Nothing of the collection is sent there until you agree: --allow-remote in the terminal, "allow_remote": true in a request.',
    "looked_for_every_minute": "Tessera checks for changes only once a minute: {why}",
}
_GROUNDS: Final = {
    "whole_document": "The model received the whole document: {tokens} of {budget} tokens that fit.",
    "whole_documents": "The model received all {documents} documents ({tokens} tokens; {budget} would fit).",
    "documents_do_not_say": "The documents of {name} do not say this: no passage fits the question.",
    "still_reading": "{what} The collection is still being read: {done} of {files} files so far.",
    "reading_now": "The collection is still being read: {done} of {files} files so far.",
    "nothing_to_give": "The collection contains no text for the model yet.",
    "passages_weak": "Weak match: the collection contains little of the question. The model still received the {count} nearest passages of {documents} documents ({amount}): {tokens} tokens.",
    "passages_given": "The model received {count} passages of {documents} documents ({amount}): {tokens} tokens.",
    "passages_not_whole": "The documents do not fit completely. The model received {count} passages of {documents} documents ({amount}): {tokens} tokens.",
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
    "collection_there": "There is already a collection named {name!r}.",
}
