"""Views of the log for people and programs: the page, REST and the demo only render them."""
