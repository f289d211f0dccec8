"""Benchmarks over time, on a GPU if there is one and on the CPU otherwise. asv_bench/README.md says how to run them."""
