"""Knowledge over HTTP."""

from plugins.knowledge.rooms.embeddings import Embeddings

ROOMS = (Embeddings,)
