"""What commands do, apart from how a terminal or a page shows it."""
