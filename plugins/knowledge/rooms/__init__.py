"""Knowledge over HTTP."""

from plugins.knowledge.rooms.document_routes import DocumentRoutes
from plugins.knowledge.rooms.embeddings import Embeddings
from plugins.knowledge.rooms.search_routes import SearchRoutes

ROOMS = (DocumentRoutes, SearchRoutes, Embeddings)
