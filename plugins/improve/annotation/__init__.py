"""Labels of rows of a file: by a scorer, by a judge, by people."""
