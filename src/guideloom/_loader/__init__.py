"""Batches to the trainer: prefetch, order of delivery, collate, state."""
