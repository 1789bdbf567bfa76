"""The `orchard` command: the application in `app`, and a module for each group of commands."""
