"""NVIDIA FLARE as a carrier: privfed uses only its transport of bytes."""
