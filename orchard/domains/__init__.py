"""The front door of each domain: its commands and its parts of the page."""
