"""The cache of answers: the same question of the same tenant to the same version is sampled once.

a call, a serve task ──► AnswerCache ──► the engine, or the answer that was recorded before, which says so
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="cache",
    settings="plugins.cache.cache_settings:Cache",
    commands={"cache": PluginCommand("plugins.cache.commands:cache", "Measure what a cache of answers would do.")},
    sampling="plugins.cache.answer_cache:build_cache",
    recounts="plugins.cache.recount_cache:RECOUNTS",
)
