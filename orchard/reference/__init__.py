"""The pages of `docs/reference/`, written from the code: `python -m orchard.reference DIRECTORY`."""
