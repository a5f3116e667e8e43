"""Another engine or version where the one that was asked gives no answer, before its first token.

a call, a serve task ──► breaker of the engine ──► first token in time? ──► answered, or the next target of the chain
"""

from streams.plugins.plugin import Plugin

PLUGIN = Plugin(
    name="fallback",
    settings="plugins.fallback.fallback_settings:Fallback",
    sampling="plugins.fallback.fallback_chain:build_fallback",
    recounts="plugins.fallback.recount_fallback:RECOUNTS",
)
