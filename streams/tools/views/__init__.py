"""Views of the log for people and programs: REST, the demo and plugins only render them."""
