"""The log recounted from the topics alone, with code of its own: what is lost, doubled, phantom or late."""
