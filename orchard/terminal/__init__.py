"""Output on a terminal: the console, tables, and the summary of left-out items of imports."""
