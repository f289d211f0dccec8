"""The choice of a storage format and of a launch, by pure functions: no code in this folder uses a device.

Row statistics → candidates with bytes and predicted time → one choice with its reason. Read the files in this order:

1. `choice`: the choice of a storage format.
2. `cost_model`: the measured constants of a device (the constants of a format are in `gsparse.formats`).
3. `columns`: the choice of a launch for a product with several dense columns.
"""
