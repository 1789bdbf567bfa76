"""The pages of `docs/reference/`, written from the code: `python -m orchard.cli.reference DIRECTORY`."""
