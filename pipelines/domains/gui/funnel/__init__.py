"""The funnel of the paper's appendix E: a large pool of web tasks into a clean seed set, in five stages."""
