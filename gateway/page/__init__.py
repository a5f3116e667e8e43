"""The page: what happened in the log, to look at in a browser. It reads, and changes nothing.

    log, archive ──► the views of `streamward query` ──► LogView ──► one module per subject ──► templates ──► HTML
                                                                    overview tasks policies ...

Every figure comes from SQL over those views, so that `streamward query` gives the same. It is an application of its own
(`streamward page`): no process of the loop knows of it, and it joins no consumer group.
"""
