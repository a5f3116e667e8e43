"""Self-play: a policy is asked catalogues of questions by schedule, and generated ones where it learns most."""
