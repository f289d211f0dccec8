"""Row statistics → candidates with bytes and predicted time → one choice with its reason: pure functions on data."""
