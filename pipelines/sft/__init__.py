"""Supervised fine-tuning: from a built dataset to a Hugging Face model directory. Needs torch."""
