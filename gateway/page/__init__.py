"""The page: the log in a browser, and forms for decisions.

    log, archive ──► streams/tools/views ──► app.py ──► render.py, templates/, chart.py ──► HTML
                                               └──► decisions.py: forms that promote a version or close a dead letter

Every figure comes from SQL over the views of `streamward query`. The page is an application of
its own (`streamward page`), or a part of the server of agents (mount.py), where people log in (login.py) and see what
their rights allow. No process of the loop depends on it, and it joins no consumer group.
"""
