"""What may be called from Python? The names that `privfed` itself offers."""
