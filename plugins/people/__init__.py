"""Keys and people: the callers of a server with serve.auth=keys, and an event of each request.

    access ──► AccessLog ──► key or access token ──► its principal ──► the door of the server ──► requests
    name and password, or an OpenID issuer ──► Logins ──► access token, refresh token

The core decides what a principal may do (streams/access/roles.py, gateway/http/door.py). Without this plugin a server
answers programs of its own machine alone.
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="people",
    topics="plugins.people.topics:TOPICS",
    settings="plugins.people.settings:People",
    serves="plugins.people.rooms.people_part:PeoplePart",
    commands={
        "admin access": PluginCommand("plugins.people.commands.access:access", "Manage API keys, users and tenants.")
    },
    views="plugins.people.views:VIEWS",
)
