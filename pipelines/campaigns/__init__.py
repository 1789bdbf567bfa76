"""Campaigns from their submission to the archive: state, conservation, spending, scores."""
