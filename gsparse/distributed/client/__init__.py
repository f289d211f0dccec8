"""What the user of a dask cluster holds."""
