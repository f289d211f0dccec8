"""Benchmarks over time, on the GPU where there is one, else on the CPU.

``cd asv_bench && asv run --python=same --quick`` runs them all once; `python -m gsparse bench` compares with others.
"""
