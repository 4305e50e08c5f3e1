"""Packing into micro-batches and balancing over ranks: integers in, integers out."""
