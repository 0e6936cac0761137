"""Fine-tuning a transformer over speakers: low-rank adaptation, full fine-tuning, and head only."""
