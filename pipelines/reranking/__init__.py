"""Reranking: a small value model scores finished attempts by what they said and did."""
