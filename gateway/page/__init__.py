"""The page: what happened in the log, to look at in a browser, and what may be decided about it.

    log, archive ──► the views of `streamward query` ──► LogView ──► one module per subject ──► templates ──► HTML
                                                                    overview tasks policies ...

Every figure comes from SQL over those views, so that `streamward query` gives the same. It is an application of its own
(`streamward page`), or a part of the server of agents (mount.py), where one logs in (entrance.py, login.py) and sees
what is one's own (rights.py). No process of the loop knows of it, and it joins no consumer group.
"""
