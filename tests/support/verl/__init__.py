"""An environment with verl, and the step that it takes on an exported batch."""
