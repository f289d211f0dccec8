"""What runs on the dask workers."""
