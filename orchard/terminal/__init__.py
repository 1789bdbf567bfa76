"""What a terminal shows: the console, tables, and how commands that import tell what they left out."""
