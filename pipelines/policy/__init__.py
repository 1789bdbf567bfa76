"""A policy server: an OpenAI-compatible endpoint over torch, for models small enough for one machine.

Larger models are served by vLLM or SGLang, whose fields the answers share.
"""
