"""Pictures for vision-language models: decoded and cut into patches, placed in tokens, in packs."""
