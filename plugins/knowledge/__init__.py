"""Knowledge: documents in the log, and indexes of their chunks that are deleted and rebuilt to the same answers.

documents add, POST /rag/index ──► documents ──► chunks ──► words and vectors ──► search, POST /rag/query, MCP
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="knowledge",
    topics="plugins.knowledge.topics:TOPICS",
    settings="plugins.knowledge.log.knowledge_settings:Knowledge",
    rooms="plugins.knowledge.rooms:ROOMS",
    commands={
        "documents": PluginCommand("plugins.knowledge.commands:documents", "Keep the documents that are searched."),
        "search": PluginCommand(
            "plugins.knowledge.rooms.search_routes:SearchRoutes",
            "Find the chunks of documents that say most about a query.",
            "search_documents",
            "query",
            "document_id chunk score text",
        ),
    },
    actions={
        "documents.read": ("viewer", "submitter", "trainer", "promoter"),
        "documents.write": ("submitter", "trainer"),
    },
    views="plugins.knowledge.document_views:VIEWS",
    lists="plugins.knowledge.document_views:LISTS",
    recounts="plugins.knowledge.recount_documents:RECOUNTS",
    extends={
        "environments": "plugins.knowledge.search_game:KINDS",
        "threads": "plugins.knowledge.index.text_ranking:SEARCHES",
    },
)
