"""Profiles of programs that use gsparse: where the seconds go.

Read the files in this order:

1. `recording`: the hook that operations call, and the spans that it records. `recorded` has decorators, `caller` finds
   the line of the program that called, and `operation_names` the names of blocks that work on a device.
2. `profile`: what users call. `rows` adds spans up.
3. `table`: the text.
"""
