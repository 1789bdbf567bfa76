"""Language models on disk: tiny ones from scratch, any Hugging Face causal model by loading. Needs torch."""
