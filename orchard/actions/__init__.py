"""Actions of commands, independent of how a terminal or a page shows them."""
