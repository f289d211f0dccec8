"""Ranks and what they exchange: partition, halo, communicators, the operator. Nothing here knows of dask."""
