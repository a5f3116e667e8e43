"""verl in an environment of its own, the step that it takes on a batch, and a program that writes its queue."""
