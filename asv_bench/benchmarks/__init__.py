"""Benchmarks over time, on the GPU where there is one, else on the CPU: asv_bench/README.md says how they are run."""
