"""Knowledge: documents in the log, and indexes of their chunks that are deleted and rebuilt to the same answers.

documents add, POST /rag/index ──► documents ──► chunks ──► words and vectors ──► search, POST /rag/query, MCP
"""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="knowledge",
    topics="plugins.knowledge.topics:TOPICS",
    settings="plugins.knowledge.knowledge_settings:Knowledge",
    rooms="plugins.knowledge.rooms:ROOMS",
    recounts="plugins.knowledge.recount_documents:RECOUNTS",
)
