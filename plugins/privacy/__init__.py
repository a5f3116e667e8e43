"""Persons' words are sealed with a key each, and forgotten with it: erasure in a log that keeps everything.

calls and tasks that name a person ──► pseudonym, key ──► sealed events
privacy erase ──► privacy (asked) ──► unreadable ──► key deleted ──► deleted, confirmed
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="privacy",
    topics="plugins.privacy.topics:TOPICS",
    settings="plugins.privacy.privacy_settings:Privacy",
    keys="plugins.privacy.person_keys:key_source",
    checks="plugins.privacy.key_checks:check_keys",
    rooms="plugins.privacy.rooms:ROOMS",
    commands={
        "privacy": PluginCommand("plugins.privacy.commands:privacy", "Erase and export what persons said."),
    },
    actions={"privacy.read": (), "privacy.erase": ()},
    recounts="plugins.privacy.recount_privacy:RECOUNTS",
)
