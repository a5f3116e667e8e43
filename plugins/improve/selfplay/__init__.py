"""Self-play: ask a policy catalogues of questions by schedule, and generated questions where it learns most."""
