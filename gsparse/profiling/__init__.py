"""Profiles of programs that use gsparse: where the seconds go.

Read the files in this order:

1. `recording`: the hook that operations call, its decorators, and the spans that it records. `names` finds the line of
   the program that called, and the names of blocks that work on a device.
2. `profile`: what users call, and its text. `rows` adds spans up.
"""
