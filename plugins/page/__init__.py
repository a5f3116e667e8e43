"""The page: the log in a browser, and forms for decisions.

    log, archive ──► views/ ──► app.py ──► render.py, templates/, chart.py ──► HTML
                                  └──► decision_forms.py: forms that promote a version or close a dead letter

Every figure comes from SQL over the views of `streamward query`. The page is an application of its own (server.py,
`streamward page`), or a part of the server of agents (mount.py), where people log in (login.py, cookie.py) and see what
their rights allow. No process of the loop depends on it, and it joins no consumer group.
"""

from streams.plugins.plugin import Plugin, PluginCommand

PLUGIN = Plugin(
    name="page",
    settings="plugins.page.settings:Page",
    serves="plugins.page.mount:PagePart",
    commands={
        "page": PluginCommand("plugins.page.commands:page", "Serve a web page of the log.", section="Look at the log")
    },
    companions={"page": "plugins.page.commands:demo_companion"},
)
